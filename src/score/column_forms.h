#pragma once
// How the values of a score program go along neighbouring keys: what lets a kernel read, or sum up, for many pairs at a time.
#include <cstdint>
#include <optional>
#include <vector>

#include "score/program.h"

namespace foveal::scoring {

/// Of one value. Blocks of n keys begin where the first key of the problem does, and at every n-th one from there.
struct ColumnForm {
  static constexpr int period = 64;
  int run = 0;            ///< it is the same for all keys of a block of so many: 8, 16, 32 or 64; 0: of no such block
  int line = 0;           ///< it grows by one with each key of a block of so many, from a multiple of that number on; 0: of no such block
  bool repeats = false;   ///< it is the same again `period` keys on
  bool distinct = false;  ///< it differs for any eight neighbours
  bool stairs = false;    ///< it never falls, and rises by one at the most with each eight keys
};
/// Of each value of a program whose first key is at kv_offset.
std::vector<ColumnForm> column_forms(const Program& program, std::int64_t kv_offset);
/// Of several indices together.
ColumnForm form_of_element(const std::vector<ColumnForm>& forms, const std::vector<ValueId>& index);

}  // namespace foveal::scoring
