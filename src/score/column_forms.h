#pragma once
// How values of a score program vary along neighbouring keys, by which kernels vectorise reads and gradient sums.
#include <cstdint>
#include <optional>
#include <vector>

#include "score/program.h"

namespace foveal::scoring {

/// The form of one value. Blocks of n keys are aligned to the problem's first key.
struct ColumnForm {
  static constexpr int period = 64;
  int run = 0;            ///< constant over every block of this many keys (8, 16, 32 or 64); 0: not constant over any of them
  int line = 0;           ///< over every block of this many keys: starts at a multiple of it and rises by one per key; 0: not so
  bool repeats = false;   ///< periodic with `period` keys
  bool distinct = false;  ///< different for any eight neighbouring keys
  bool stairs = false;    ///< nondecreasing, by at most one every eight keys
};
/// One per value of a program; the first key of the problem is at kv_offset.
base::IdVector<ColumnForm> column_forms(const Program& program, std::int64_t kv_offset);
/// The form of an element addressed by these indices.
ColumnForm form_of_element(const base::IdVector<ColumnForm>& forms, const std::vector<ValueId>& index);

}  // namespace foveal::scoring
