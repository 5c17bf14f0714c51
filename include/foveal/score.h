#pragma once
// The score language: an Expr is a typed, immutable expression over the symbols score, batch, head, q_idx, kv_idx and
// named parameters. A score_mod is a real Expr, a mask a boolean one. Expressions are values: build them with operators,
// print them, parse them back. Their derivative is found symbolically; nobody writes one.
//
// Types. boolean < integer < real: an operation on mixed types promotes to the wider one (true is 1). `/` is always the
// true division of reals; floor_div and % are Python's (rounding towards minus infinity, the remainder has the divisor's sign).
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
  Expr() = default;  ///< absent: as a score_mod it means `score`, as a mask `true`
  Expr(bool value);
  Expr(int value);
  Expr(long value);
  Expr(long long value);
  Expr(double value);
  explicit Expr(std::shared_ptr<const scoring::Node> node) : node_(std::move(node)) {}

  explicit operator bool() const = delete;  // an Expr has no truth value: use where(), &, |, !
  bool present() const { return node_ != nullptr; }
  Type type() const;  ///< throws invalid_argument when absent
  const std::shared_ptr<const scoring::Node>& node() const { return node_; }

 private:
  std::shared_ptr<const scoring::Node> node_;
};

/// A named tensor that a score or mask reads: rel(head, kv_idx - q_idx). `type` says how expressions see it: a real parameter
/// may be bound to any floating tensor and may be trained; integer and boolean ones are bound to integer or bool tensors.
/// Two Params are the same when their names are the same; one attention may not hold two different ones of one name.
class FOVEAL_API Param {
 public:
  Param() = default;
  /// Throws invalid_argument when the name is no identifier, a symbol or a function, or a size is not positive.
  Param(std::string name, std::vector<std::int64_t> shape, Type type = Type::real);

  const std::string& name() const { return info_->name; }
  const std::vector<std::int64_t>& shape() const { return info_->shape; }
  Type type() const { return info_->type; }
  bool present() const { return info_ != nullptr; }

  /// A read. One integer index per dimension, in order; throws invalid_argument otherwise. An index that leaves the parameter at
  /// a pair the mask keeps is an error: found by interval analysis at planning when it is certain, by Attention::checked at run
  /// time otherwise. Unchecked runs clamp it into the tensor.
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
extern FOVEAL_API const Expr score;      ///< real: q . k * scale
extern FOVEAL_API const Expr batch;      ///< integer: batch row, or the sequence of a packed batch
extern FOVEAL_API const Expr head;       ///< integer: query head
extern FOVEAL_API const Expr q_idx;      ///< integer: global position of the query in its sequence
extern FOVEAL_API const Expr kv_idx;     ///< integer: global position of the key in its sequence
extern FOVEAL_API const Expr seqlen_q;   ///< integer: queries of this sequence
extern FOVEAL_API const Expr seqlen_kv;  ///< integer: keys of this sequence
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
FOVEAL_API Expr operator&(const Expr& a, const Expr& b);   ///< and: of two booleans logical, of integers bit by bit
FOVEAL_API Expr operator|(const Expr& a, const Expr& b);   ///< or: likewise
FOVEAL_API Expr operator^(const Expr& a, const Expr& b);   ///< exclusive or: likewise
FOVEAL_API Expr operator<<(const Expr& a, const Expr& b);  ///< a * 2^b of integers, b from 0 to 63
FOVEAL_API Expr operator>>(const Expr& a, const Expr& b);  ///< floor_div(a, 2^b) of integers, b from 0 to 63
FOVEAL_API Expr operator!(const Expr& a);                  ///< of a boolean
FOVEAL_API Expr operator~(const Expr& a);                  ///< ! of a boolean, -1 - a of an integer

FOVEAL_API Expr floor_div(const Expr& a, const Expr& b);
FOVEAL_API Expr where(const Expr& condition, const Expr& if_true, const Expr& if_false);
FOVEAL_API Expr min(const Expr& a, const Expr& b);                        ///< of a tie, each takes half of the derivative
FOVEAL_API Expr max(const Expr& a, const Expr& b);                        ///< of a tie, each takes half of the derivative
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
FOVEAL_API Expr stop_gradient(const Expr& x);  ///< x itself; its derivative is 0, also that of parameters that it reads
FOVEAL_API Expr to_real(const Expr& x);
FOVEAL_API Expr to_integer(const Expr& x);  ///< truncates towards zero; no derivative
FOVEAL_API Expr to_int32(const Expr& x);    ///< the low 32 bits of an integer, with their sign: arithmetic of int32 that wraps
FOVEAL_API Expr to_boolean(const Expr& x);  ///< x != 0

/// The canonical text of an expression: fully determined by its meaning after simplification, parsed back by parse().
FOVEAL_API std::string to_string(const Expr& expr);

/// Parses the text form, e.g. `score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]`. `params` are the names it may read.
/// Operators as in Python (`//`, `%`, `/`, `**`, comparisons, `&`, `|`, `^`, `~`, `and`, `or`, `not`, `a if c else b`) and the
/// functions above, plus the masks of masks.h by name. Throws invalid_argument with the line and a caret under the column.
FOVEAL_API Expr parse(std::string_view text, const std::vector<Param>& params = {});

/// Parses `name: real[4, 33]`, `name: integer[128]`, `name: boolean[]`.
FOVEAL_API Param parse_param(std::string_view text);

}  // namespace foveal
