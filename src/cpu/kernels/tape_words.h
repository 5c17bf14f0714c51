// The steps of a tape on integers and booleans: the same for tiles of any type.
#pragma once
#include "cpu/kernels/tape_integers.h"
#include "cpu/kernels/tape_sums.h"

namespace foveal::cpu {
namespace {

class TapeWords : protected TapeSums {
 protected:
  using TapeSums::TapeSums;

  /// Long: a row for each operation, compiled to one jump table.
  void words(const TapeStep& step) {
    using H = Vec<Int, kLongs>;  // as many words as a vector has integers of 64 bits
#define FOVEAL_INTEGER_STEP(op, expression) \
  case TapeOp::op:                          \
    return map<Int, Int, Int, Int, kWords>(step, [](W a, [[maybe_unused]] W b, [[maybe_unused]] W c) -> W { return expression; })
#define FOVEAL_INTEGER64_STEP(op, expression) \
  case TapeOp::op:                            \
    return map<Int64, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, [[maybe_unused]] L c) -> L { return expression; })
#define FOVEAL_INTEGER_STEPS(op, expression)                                                                             \
  case TapeOp::op##_i:                                                                                                   \
    return map<Int, Int, Int, Int, kWords>(step, []<class N>(N a, [[maybe_unused]] N b, N) -> N { return expression; }); \
  case TapeOp::op##_l:                                                                                                   \
    return map<Int64, Int64, Int64, Int64, kLongs>(step, []<class N>(N a, [[maybe_unused]] N b, N) -> N { return expression; })
#define FOVEAL_COMPARISON64_STEP(op, expression) \
  case TapeOp::op:                               \
    return map<Int, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, L) { return __builtin_convertvector(expression, H); })
    switch (step.op) {
      case TapeOp::constant_r:
      case TapeOp::constant_i:
      case TapeOp::constant_l:
        return;
      case TapeOp::batch:
        return fill<Int>(step, frame_.batch);
      case TapeOp::head:
        return fill<Int>(step, frame_.head[call_.first_lane]);
      case TapeOp::seqlen_q:
        return fill<Int>(step, frame_.seqlen_q);
      case TapeOp::seqlen_kv:
        return fill<Int>(step, frame_.seqlen_kv);
      case TapeOp::kv_idx:
        return count(step, frame_.kv_idx, 1);
      case TapeOp::distance:
        return count(step, frame_.kv_idx - frame_.q_idx[call_.first_lane] + frame_.keys - 1, -1);

        FOVEAL_INTEGER_STEPS(add, wrapping_add(a, b));
        FOVEAL_INTEGER_STEPS(sub, wrapping_sub(a, b));
        FOVEAL_INTEGER_STEPS(mul, wrapping_mul(a, b));
        FOVEAL_INTEGER_STEPS(neg, wrapping_sub(N{}, a));
        FOVEAL_INTEGER_STEPS(abs, a < 0 ? wrapping_sub(N{}, a) : a);
        FOVEAL_INTEGER_STEPS(min, b < a ? b : a);
        FOVEAL_INTEGER_STEPS(max, b > a ? b : a);
      case TapeOp::floor_div_i:
        if (const Int divisor = common_divisor(step)) {
          const Division by(divisor);
          return map<Int, Int, Int, Int, kWords>(step, [by](W a, W, W) -> W { return by.quotient(a); });
        }
        return map<Int, Int, Int, Int, kVectorBytes / 8>(step, [](auto a, auto b, auto) { return quotient(a, b); });
      case TapeOp::mod_i:
        if (const Int divisor = common_divisor(step)) {
          const Division by(divisor);
          return map<Int, Int, Int, Int, kWords>(
              step, [by](W a, W, W) -> W { return wrapping_sub(a, wrapping_mul(by.quotient(a), splat<W>(by.divisor))); });
        }
        return map<Int, Int, Int, Int, kVectorBytes / 8>(
            step, [](auto a, auto b, auto) { return b == 0 ? b : wrapping_sub(a, wrapping_mul(quotient(a, b), b)); });

        FOVEAL_INTEGER_STEPS(bit_and, a & b);
        FOVEAL_INTEGER_STEPS(bit_or, a | b);
        FOVEAL_INTEGER_STEPS(bit_xor, a ^ b);
        FOVEAL_INTEGER_STEP(shift_left_i, b > 31 ? W{} : wrapping_shift(a, b < 0 ? W{} : b & 31));
        FOVEAL_INTEGER_STEP(shift_right_i, a >> (b < 0 ? W{} : b > 31 ? splat<W>(31) : b));

        FOVEAL_INTEGER64_STEP(floor_div_l, quotient64(a, b));
        FOVEAL_INTEGER64_STEP(mod_l, b == 0 ? b : wrapping_sub(a, wrapping_mul(quotient64(a, b), b)));
        FOVEAL_INTEGER64_STEP(shift_left_l, wrapping_shift(a, shift_count64(b)));
        FOVEAL_INTEGER64_STEP(shift_right_l, a >> shift_count64(b));

        FOVEAL_INTEGER_STEP(eq_i, a == b);
        FOVEAL_INTEGER_STEP(ne_i, a != b);
        FOVEAL_INTEGER_STEP(lt_i, a < b);
        FOVEAL_INTEGER_STEP(le_i, a <= b);
        FOVEAL_COMPARISON64_STEP(eq_l, a == b);
        FOVEAL_COMPARISON64_STEP(ne_l, a != b);
        FOVEAL_COMPARISON64_STEP(lt_l, a < b);
        FOVEAL_COMPARISON64_STEP(le_l, a <= b);
        FOVEAL_INTEGER_STEP(logical_and_b, a & b);
        FOVEAL_INTEGER_STEP(logical_or_b, a | b);
        FOVEAL_INTEGER_STEP(logical_not_b, ~a);
        FOVEAL_INTEGER_STEP(logical_xor_b, a ^ b);
        FOVEAL_INTEGER_STEP(select_i, (a & b) | (~a & c));
      case TapeOp::select_l:
        return map<Int64, Int, Int64, Int64, kLongs>(step, [](H a, L b, L c) -> L { return __builtin_convertvector(a, L) ? b : c; });

        FOVEAL_INTEGER_STEP(to_integer_b, -a);
        FOVEAL_INTEGER_STEP(to_boolean_i, a != 0);
        FOVEAL_COMPARISON64_STEP(to_boolean_l, a != 0);
        FOVEAL_INTEGER64_STEP(to_int32_l, bits<L>(bits<UnsignedVec<L>>(a) << 32) >> 32);
      case TapeOp::lengthen:
        return map<Int64, Int, Int, Int, kLongs>(step, [](H a, H, H) { return __builtin_convertvector(a, L); });
        FOVEAL_COMPARISON64_STEP(shorten, a > 2147483647 ? splat<L>(2147483647) : a < -2147483647 - 1 ? splat<L>(-2147483647 - 1) : a);
        FOVEAL_INTEGER_STEP(copy_i, a);
      case TapeOp::read_i:
      case TapeOp::read_l:
      case TapeOp::read_b:
        return read_integers(step);
      default:
        __builtin_trap();  // a step without a row anywhere
    }
#undef FOVEAL_INTEGER_STEP
#undef FOVEAL_INTEGER64_STEP
#undef FOVEAL_INTEGER_STEPS
#undef FOVEAL_COMPARISON64_STEP
  }

 private:
  /// The divisor of a step where it is uniform and positive; otherwise 0.
  Int common_divisor(const TapeStep& step) const {
    const TapeRef b = ref<Int>(step.b);
    const Int divisor = b.row == 0 && b.lane == 0 ? *reinterpret_cast<const Int*>(b.p) : 0;
    return divisor > 0 ? divisor : 0;
  }
};

}  // namespace
}  // namespace foveal::cpu
