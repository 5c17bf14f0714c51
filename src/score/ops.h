#pragma once
// The operations of the score language, one row each: name, text, arity and signature. Values, derivatives, interval rules and CUDA
// spellings are in the rows of ops.cpp. Tests iterate over the rows.
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace foveal::scoring {

// X(op, text, arity, signature)
// text: function name or operator in canonical text. signature: operand types, '>', result type. r: real, i: integer, b: boolean, n: real
// or integer, t: any type; all n, or all t, of a signature are the same type.
#define FOVEAL_SCORE_OPS(X)                   \
  X(real_const, "", 0, ">r")                  \
  X(integer_const, "", 0, ">i")               \
  X(boolean_const, "", 0, ">b")               \
  X(score, "score", 0, ">r")                  \
  X(batch, "batch", 0, ">i")                  \
  X(head, "head", 0, ">i")                    \
  X(q_idx, "q_idx", 0, ">i")                  \
  X(kv_idx, "kv_idx", 0, ">i")                \
  X(seqlen_q, "seqlen_q", 0, ">i")            \
  X(seqlen_kv, "seqlen_kv", 0, ">i")          \
  X(read, "", 0, ">t")                        \
  X(add, "+", 2, "nn>n")                      \
  X(sub, "-", 2, "nn>n")                      \
  X(mul, "*", 2, "nn>n")                      \
  X(div, "/", 2, "rr>r")                      \
  X(floor_div, "//", 2, "nn>n")               \
  X(mod, "%", 2, "nn>n")                      \
  X(neg, "-", 1, "n>n")                       \
  X(abs, "abs", 1, "n>n")                     \
  X(min, "min", 2, "nn>n")                    \
  X(max, "max", 2, "nn>n")                    \
  X(exp, "exp", 1, "r>r")                     \
  X(exp2, "exp2", 1, "r>r")                   \
  X(log, "log", 1, "r>r")                     \
  X(log2, "log2", 1, "r>r")                   \
  X(sqrt, "sqrt", 1, "r>r")                   \
  X(rsqrt, "rsqrt", 1, "r>r")                 \
  X(tanh, "tanh", 1, "r>r")                   \
  X(sigmoid, "sigmoid", 1, "r>r")             \
  X(sin, "sin", 1, "r>r")                     \
  X(cos, "cos", 1, "r>r")                     \
  X(tan, "tan", 1, "r>r")                     \
  X(erf, "erf", 1, "r>r")                     \
  X(floor, "floor", 1, "r>r")                 \
  X(pow, "pow", 2, "rr>r")                    \
  X(stop_gradient, "stop_gradient", 1, "r>r") \
  X(eq, "==", 2, "nn>b")                      \
  X(ne, "!=", 2, "nn>b")                      \
  X(lt, "<", 2, "nn>b")                       \
  X(le, "<=", 2, "nn>b")                      \
  X(logical_and, "&", 2, "bb>b")              \
  X(logical_or, "|", 2, "bb>b")               \
  X(logical_not, "~", 1, "b>b")               \
  X(logical_xor, "^", 2, "bb>b")              \
  X(bit_and, "&", 2, "ii>i")                  \
  X(bit_or, "|", 2, "ii>i")                   \
  X(bit_xor, "^", 2, "ii>i")                  \
  X(shift_left, "<<", 2, "ii>i")              \
  X(shift_right, ">>", 2, "ii>i")             \
  X(select, "where", 3, "btt>t")              \
  X(to_real, "to_real", 1, "t>r")             \
  X(to_integer, "to_integer", 1, "t>i")       \
  X(to_boolean, "to_boolean", 1, "t>b")       \
  X(to_int32, "to_int32", 1, "i>i")           \
  X(to_float32, "to_float32", 1, "r>r")       \
  X(to_bfloat16, "to_bfloat16", 1, "r>r")     \
  X(to_float16, "to_float16", 1, "r>r")

enum class Op : std::uint8_t {
#define FOVEAL_X(op, text, arity, signature) op,
  FOVEAL_SCORE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

/// batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv.
constexpr bool is_position(Op op) { return op >= Op::batch && op <= Op::seqlen_kv; }
constexpr bool is_comparison(Op op) { return op >= Op::eq && op <= Op::le; }

/// Point and Box have a field for each position symbol; this is the one of `symbol`.
template <class Positions>
auto& position(Positions& positions, Op symbol) {
  using P = std::remove_const_t<Positions>;
  static constexpr std::array fields{&P::batch, &P::head, &P::q_idx, &P::kv_idx, &P::seqlen_q, &P::seqlen_kv};
  return positions.*fields[static_cast<std::size_t>(symbol) - static_cast<std::size_t>(Op::batch)];
}

}  // namespace foveal::scoring
