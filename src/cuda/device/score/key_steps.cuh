#pragma once
// Which indices of keys are the sum of what they are at a place and at a step from there.

namespace foveal::device {

/// Do `//` and `%` by these numbers, of a kv whose Position has this key_block, give the sum of what they give for kv - kv_step and for kv_step? So where no carry
/// from the one reaches the other. A chain of them, `kv // 16 % 8`, asks for each by what kv is divided by in all: 16, 128.
template <class... Block>
constexpr bool fv_steps_apart(int key_block, Block... block) {
  return key_block > 0 && (... && (block % 8 == 0 && (key_block % block == 0 || block % key_block == 0)));
}

}  // namespace foveal::device
