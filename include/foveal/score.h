#pragma once
// The score language. An Expr is a typed, immutable expression over symbols (score, batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv) and
// named parameters. A score_mod is a real Expr, a mask a boolean one. Expressions are values: build them with operators or parse() them;
// to_string() prints text that parses back. Derivatives are computed symbolically.
//
// Types are ordered boolean < integer < real. Operands of mixed types are promoted to the widest of them, at least to integer for
// arithmetic (true is 1). `/` is true division of reals; floor_div and % follow Python: the quotient is rounded towards minus infinity, the
// remainder has the divisor's sign. Integers have 64 bits. All functions throw invalid_argument for an absent operand or one of a wrong
// type.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "foveal/export.h"

namespace foveal {

enum class Type : std::uint8_t { boolean, integer, real };

FOVEAL_API const char* to_string(Type type);

namespace scoring {
struct Node;
}

class FOVEAL_API Expr {
 public:
  Expr() = default;  ///< absent: `score` as a score_mod, `true` as a mask
  Expr(bool value);
  Expr(int value);
  Expr(long value);
  Expr(long long value);
  Expr(double value);
  explicit Expr(std::shared_ptr<const scoring::Node> node) : node_(std::move(node)) {}

  explicit operator bool() const = delete;  // no truth value before it is evaluated: use where(), &, |, !
  bool present() const { return node_ != nullptr; }
  Type type() const;  ///< throws invalid_argument when absent
  const std::shared_ptr<const scoring::Node>& node() const { return node_; }

 private:
  std::shared_ptr<const scoring::Node> node_;
};

/// A named tensor that a score or mask reads, as in rel(head, kv_idx - q_idx + 16). A real parameter binds to a tensor of any floating
/// dtype and can be trained; an integer one binds to i64, i32, i16, i8 or u8, a boolean one to boolean or u8. Params are identified by
/// name: two with the same name but another shape or type cannot occur in one attention.
class FOVEAL_API Param {
 public:
  Param() = default;
  /// Throws invalid_argument if the name is not an identifier or is reserved (a symbol, function or keyword), the rank exceeds
  /// TensorView::max_rank, or a size is not positive.
  Param(std::string name, std::vector<std::int64_t> shape, Type type = Type::real);

  // These throw invalid_argument when it is absent: made without a name, or moved from.
  const std::string& name() const;
  const std::vector<std::int64_t>& shape() const;
  Type type() const;
  bool present() const { return info_ != nullptr; }

  /// Reads one element: one integer or boolean index per dimension, in order; anything else throws invalid_argument. An index out of range
  /// at a pair that the mask keeps is an error. Planning reports it if interval analysis proves it, Attention::checked reports it at run
  /// time; unchecked runs clamp the index into the tensor.
  template <class... Index>
  Expr operator()(const Index&... index) const {
    return read({Expr(index)...});
  }
  Expr read(std::vector<Expr> index) const;

  struct Info {
    std::string name;
    std::vector<std::int64_t> shape;
    Type type = Type::real;
  };
  const std::shared_ptr<const Info>& info() const { return info_; }

 private:
  std::shared_ptr<const Info> info_;
};

namespace symbols {
extern FOVEAL_API const Expr score;      ///< real: scale * dot(q, k)
extern FOVEAL_API const Expr batch;      ///< integer: batch entry, or sequence of a packed batch
extern FOVEAL_API const Expr head;       ///< integer: query head
extern FOVEAL_API const Expr q_idx;      ///< integer: position of the query in its sequence, plus Attention::q_offset
extern FOVEAL_API const Expr kv_idx;     ///< integer: position of the key in its sequence, plus Attention::kv_offset
extern FOVEAL_API const Expr seqlen_q;   ///< integer: number of queries of the sequence
extern FOVEAL_API const Expr seqlen_kv;  ///< integer: number of keys of the sequence
}  // namespace symbols

FOVEAL_API Expr operator+(const Expr& a, const Expr& b);
FOVEAL_API Expr operator-(const Expr& a, const Expr& b);
FOVEAL_API Expr operator*(const Expr& a, const Expr& b);
FOVEAL_API Expr operator/(const Expr& a, const Expr& b);  ///< true division, real
FOVEAL_API Expr operator%(const Expr& a, const Expr& b);  ///< Python's remainder
FOVEAL_API Expr operator-(const Expr& a);
FOVEAL_API Expr operator==(const Expr& a, const Expr& b);
FOVEAL_API Expr operator!=(const Expr& a, const Expr& b);
FOVEAL_API Expr operator<(const Expr& a, const Expr& b);
FOVEAL_API Expr operator<=(const Expr& a, const Expr& b);
FOVEAL_API Expr operator>(const Expr& a, const Expr& b);
FOVEAL_API Expr operator>=(const Expr& a, const Expr& b);
FOVEAL_API Expr operator&(const Expr& a, const Expr& b);   ///< logical and of two booleans, bitwise and of integers
FOVEAL_API Expr operator|(const Expr& a, const Expr& b);   ///< or, likewise
FOVEAL_API Expr operator^(const Expr& a, const Expr& b);   ///< exclusive or, likewise
FOVEAL_API Expr operator<<(const Expr& a, const Expr& b);  ///< a * 2^b for integers, 0 <= b <= 63
FOVEAL_API Expr operator>>(const Expr& a, const Expr& b);  ///< floor_div(a, 2^b) for integers, 0 <= b <= 63
FOVEAL_API Expr operator!(const Expr& a);                  ///< logical not of a boolean
FOVEAL_API Expr operator~(const Expr& a);                  ///< logical not of a boolean, bitwise not of an integer

FOVEAL_API Expr floor_div(const Expr& a, const Expr& b);
FOVEAL_API Expr where(const Expr& condition, const Expr& if_true, const Expr& if_false);
FOVEAL_API Expr min(const Expr& a, const Expr& b);                        ///< at a tie the derivative is split evenly
FOVEAL_API Expr max(const Expr& a, const Expr& b);                        ///< at a tie the derivative is split evenly
FOVEAL_API Expr clamp(const Expr& x, const Expr& low, const Expr& high);  ///< min(max(x, low), high)
FOVEAL_API Expr abs(const Expr& x);                                       ///< derivative 0 at 0
FOVEAL_API Expr exp(const Expr& x);
FOVEAL_API Expr exp2(const Expr& x);
FOVEAL_API Expr log(const Expr& x);
FOVEAL_API Expr log2(const Expr& x);
FOVEAL_API Expr sqrt(const Expr& x);
FOVEAL_API Expr rsqrt(const Expr& x);
FOVEAL_API Expr tanh(const Expr& x);
FOVEAL_API Expr sigmoid(const Expr& x);
FOVEAL_API Expr sin(const Expr& x);
FOVEAL_API Expr cos(const Expr& x);
FOVEAL_API Expr tan(const Expr& x);
FOVEAL_API Expr erf(const Expr& x);
FOVEAL_API Expr floor(const Expr& x);  ///< real to real; derivative 0
FOVEAL_API Expr pow(const Expr& x, const Expr& exponent);
FOVEAL_API Expr stop_gradient(const Expr& x);  ///< x, treated as a constant by differentiation, including parameters read in x
FOVEAL_API Expr to_real(const Expr& x);
FOVEAL_API Expr to_integer(const Expr& x);  ///< truncates towards zero; derivative 0
FOVEAL_API Expr to_int32(const Expr& x);    ///< the low 32 bits of an integer, sign-extended: int32 wrap-around
FOVEAL_API Expr to_boolean(const Expr& x);  ///< x != 0
// The nearest number of the type, as a real; infinite beyond the largest. The derivative is that of x.
FOVEAL_API Expr to_float32(const Expr& x);
FOVEAL_API Expr to_bfloat16(const Expr& x);
FOVEAL_API Expr to_float16(const Expr& x);

/// The canonical text of an expression after simplification; parse() reads it back. Equal expressions print alike.
FOVEAL_API std::string to_string(const Expr& expr);

/// Parses text such as `score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]`. `params` are the parameters that it may read. Operators and
/// their precedence are Python's (`//`, `%`, `/`, `**`, comparisons and their chains, `&`, `|`, `^`, `~`, `<<`, `>>`, `and`, `or`, `not`,
/// `a if c else b`); functions are those above and the named masks and scores of masks.h. Throws invalid_argument with line, column and
/// caret.
FOVEAL_API Expr parse(std::string_view text, const std::vector<Param>& params = {});

/// Parses a declaration: `name: real[4, 33]`, `name: integer[128]`, `name: boolean[]`. Throws invalid_argument.
FOVEAL_API Param parse_param(std::string_view text);

}  // namespace foveal
