#pragma once
// Random expressions of every type, built through the public operators.
#include <random>
#include <vector>

#include "foveal/score.h"

namespace foveal::test {

class RandomExpr {
 public:
  explicit RandomExpr(unsigned seed) : random_(seed) {}

  const std::vector<Param>& params() const { return params_; }

  Expr real(int depth) {
    if (depth == 0) {
      switch (pick(6)) {
        case 0:
        case 1:
          return symbols::score;
        case 2:
          return weights_(integer(0));
        case 3:
          return Expr(constant());
        case 4:
          return table_(symbols::head, integer(0));
        default:
          return scalar_();
      }
    }
    const int d = depth - 1;
    switch (pick(31)) {
      case 0:
      case 1:
        return real(d) + real(d);
      case 2:
        return real(d) - real(d);
      case 3:
      case 4:
        return real(d) * real(d);
      case 5:
        return real(d) / real(d);
      case 6:
        return floor_div(real(d), real(d));
      case 7:
        return real(d) % real(d);
      case 8:
        return -real(d);
      case 9:
        return abs(real(d));
      case 10:
        return min(real(d), real(d));
      case 11:
        return max(real(d), real(d));
      case 12:
        return exp(real(d));
      case 13:
        return exp2(real(d));
      case 14:
        return log(real(d));
      case 15:
        return log2(real(d));
      case 16:
        return sqrt(real(d));
      case 17:
        return rsqrt(real(d));
      case 18:
        return tanh(real(d));
      case 19:
        return sigmoid(real(d));
      case 20:
        return sin(real(d));
      case 21:
        return cos(real(d));
      case 22:
        return tan(real(d));
      case 23:
        return erf(real(d));
      case 24:
        return floor(real(d));
      case 25:
        return pow(real(d), pick(2) ? real(d) : Expr(static_cast<double>(pick(5)) - 1));
      case 26:
        return where(boolean(d), real(d), real(d));
      case 27:
        return real(d) + integer(d);
      case 28:
        return real(d) * boolean(d);
      case 29:
        return stop_gradient(real(d));
      default:
        return to_real(integer(d)) - integer(d);
    }
  }

  Expr integer(int depth) {
    if (depth == 0) {
      switch (pick(8)) {
        case 0:
          return symbols::head;
        case 1:
          return symbols::batch;
        case 2:
          return Expr(pick(13) - 6);
        case 3:
          return symbols::seqlen_kv;
        case 4:
        case 5:
          return symbols::q_idx;
        default:
          return symbols::kv_idx;
      }
    }
    const int d = depth - 1;
    switch (pick(20)) {
      case 0:
      case 1:
        return integer(d) + integer(d);
      case 2:
      case 3:
        return integer(d) - integer(d);
      case 4:
        return integer(d) * Expr(pick(9) - 4);
      case 5:
        return floor_div(integer(d), divisor());
      case 6:
        return integer(d) % divisor();
      case 7:
        return -integer(d);
      case 8:
        return abs(integer(d));
      case 9:
        return min(integer(d), integer(d));
      case 10:
        return max(integer(d), integer(d));
      case 11:
        return clamp(integer(d), -4, pick(9));
      case 12:
        return ids_(integer(d));
      case 13:
        return where(boolean(d), integer(d), integer(d));
      case 14:
        return to_integer(boolean(d)) + boolean(d);
      case 15:
        return integer(d) & integer(d);
      case 16:
        return integer(d) | Expr(pick(13) - 6);
      case 17:
        return integer(d) ^ integer(d);
      case 18:
        return (integer(d) >> pick(4)) + (Expr(1) << (integer(0) & 7));
      default:
        return floor_div(integer(d), integer(d));
    }
  }

  Expr boolean(int depth) {
    if (depth == 0) {
      switch (pick(5)) {
        case 0:
          return symbols::kv_idx <= symbols::q_idx;
        case 1:
          return flags_(integer(0));
        case 2:
          return Expr(pick(2) == 0);
        default:
          return integer(0) < integer(0);
      }
    }
    const int d = depth - 1;
    switch (pick(16)) {
      case 0:
        return boolean(d) & boolean(d);
      case 1:
        return boolean(d) | boolean(d);
      case 2:
        return boolean(d) ^ boolean(d);
      case 3:
        return !boolean(d);
      case 4:
        return integer(d) == integer(d);
      case 5:
        return integer(d) != integer(d);
      case 6:
        return integer(d) < integer(d);
      case 7:
        return integer(d) <= integer(d);
      case 8:
        return integer(d) > integer(d);
      case 9:
        return integer(d) >= integer(d);
      case 10:
        return real(d) < real(d);
      case 11:
        return real(d) <= to_real(integer(d));
      case 12:
        return where(boolean(d), boolean(d), boolean(d));
      case 13:
        return boolean(d) == boolean(d);
      case 14:
        return boolean(d) < boolean(d);
      default:
        return to_boolean(integer(d));
    }
  }

 private:
  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  double constant() { return static_cast<double>(pick(17) - 8) / 4; }
  Expr divisor() { return Expr(pick(2) ? pick(7) + 1 : -pick(4) - 1); }

  std::mt19937 random_;
  Param weights_{"weights", {32}}, table_{"table", {4, 32}}, scalar_{"scalar", {}};
  Param ids_{"ids", {32}, Type::integer}, flags_{"flags", {32}, Type::boolean};
  std::vector<Param> params_{weights_, table_, scalar_, ids_, flags_};
};

}  // namespace foveal::test
