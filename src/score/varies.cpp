#include "score/varies.h"

#include "base/enum_name.h"
#include "score/program.h"

namespace foveal::scoring {

const char* to_string(Varies varies) { return base::enum_name(varies, {"uniform", "row", "column", "diagonal", "pair"}); }

Varies varies(std::uint8_t depends, bool along_diagonals) {
  if (depends & depends_score) return Varies::pair;
  switch (depends & (depends_q | depends_kv)) {
    case 0:
      return Varies::uniform;
    case depends_q:
      return Varies::row;
    case depends_kv:
      return Varies::column;
    default:
      return along_diagonals ? Varies::diagonal : Varies::pair;
  }
}

Varies varies(const Program& program, std::int32_t value) {
  return varies(program.depends_of(value), program.along_diagonals[static_cast<std::size_t>(value)]);
}

}  // namespace foveal::scoring
