#pragma once
// Splitting functions of a key index into parts for a base and a step.

namespace foveal::device {

/// For a kv whose Position has this key_block: are `//` and `%` by these numbers additive, f(kv) = f(kv - kv_step) + f(kv_step)? They are
/// if no carry crosses. A chain such as `kv // 16 % 8` passes the total divisor of each: 16, 128.
template <class... Block>
constexpr bool fv_steps_apart(int key_block, Block... block) {
  return key_block > 0 && (... && (block % 8 == 0 && (key_block % block == 0 || block % key_block == 0)));
}

}  // namespace foveal::device
