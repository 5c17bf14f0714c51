// Runs the programs of tape_code.h on tiles. Every step is one loop over rows of vectors; its operands may be tiles, lane, key, diagonal or
// uniform values: they differ only in how far one row lies from the next and whether the vector moves along the lanes.
#pragma once
#include "cpu/kernels/tape_math.h"
#include "cpu/tape_code.h"

namespace foveal::cpu {
namespace {

/// An operand at the first row of the step: byte distance of rows, and 1 where elements follow the lanes (0: one vector serves all lanes).
struct TapeRef {
  char* p;
  std::ptrdiff_t row;
  std::ptrdiff_t lane;
};

/// The vectors of a step that touches reals of type R.
template <class R>
struct TapeTypes {
  static constexpr int lanes = kVectorBytes / sizeof(R);
  using V = Vec<R, lanes>;
  using I = Vec<std::int32_t, lanes>;
  using Mask = Vec<typename IntegerOf<sizeof(R)>::type, lanes>;  ///< as wide as V

  static Mask wide(I mask) { return __builtin_convertvector(mask, Mask); }
  static I narrow(Mask mask) { return __builtin_convertvector(mask, I); }

  /// Python's remainder: the sign of the divisor, exact.
  static V remainder(V a, V b) {
    for (int i = 0; i < lanes; ++i) {
      const R rest = sizeof(R) == 4 ? static_cast<R>(__builtin_fmodf(a[i], b[i])) : static_cast<R>(__builtin_fmod(a[i], b[i]));
      a[i] = rest != 0 && (rest < 0) != (b[i] < 0) ? rest + b[i] : rest;
    }
    return a;
  }

  /// Towards zero, saturating, NaN to 0.
  static I truncate(V x) {
    const V number = x == x ? x : V{};
    const V low = number < R(-2147483648.0) ? splat<V>(R(-2147483648.0)) : number;
    const Mask high = low >= R(2147483648.0);
    const I result = __builtin_convertvector(high ? V{} : low, I);
    return narrow(high) ? splat<I>(2147483647) : result;
  }
};

template <class Real>
class TapeRun {
 public:
  explicit TapeRun(const TapeCall& call)
      : call_(call), frame_(*call.frame), slots_(tape_slots(frame_.keys, call.lanes, call.program->strip_element)) {
    const TapeProgram& program = *call.program;
    char* at = call.scratch;
    const auto lay = [&](Space space, std::size_t slot, int count, int row, int lane) {
      places_[static_cast<int>(space)] = {at, static_cast<std::ptrdiff_t>(slot), 0, row, lane};
      at += slot * static_cast<std::size_t>(count);
    };
    lay(Space::uniform, slots_.uniform, program.uniforms, 0, 0);
    lay(Space::lane, slots_.lane, program.lanes, 0, 1);
    lay(Space::key, slots_.key, program.keys, 1, 1);
    lay(Space::key_spread, slots_.key_spread, program.key_spreads, 16, 0);
    lay(Space::diagonal, slots_.diagonal, program.diagonals, 0, 1);
    lay(Space::strip, slots_.strip, program.strips, call.lanes, 1);
    const auto give = [&](Space space, const void* data, std::ptrdiff_t slot, std::ptrdiff_t first, std::ptrdiff_t row,
                          std::ptrdiff_t lane) {
      places_[static_cast<int>(space)] = {const_cast<char*>(static_cast<const char*>(data)), slot, first, row, lane};
    };
    static constexpr Zeros nothing{};  // what a step's missing operands load
    give(Space::none, &nothing, 0, 0, 0, 0);
    give(Space::constant, program.constants, tape_constant_distance, 0, 0, 0);
    give(Space::lane_q, frame_.q_idx, 0, call.first_lane, 0, 1);
    give(Space::lane_head, frame_.head, 0, call.first_lane, 0, 1);
    give(Space::input, call.input, 0, call.first_lane, frame_.ld, 1);
    give(Space::output, call.output, 0, call.first_lane, frame_.ld, 1);
  }

  void run() {
    const TapeProgram& program = *call_.program;
    const TapeStep* step = program.steps;
    for (; step != program.steps + program.strip_begin; ++step) execute_alone(*step);
    if (program.strip_end > program.strip_begin) {
      const int strip_rows = tape_strip_rows(call_.lanes);
      columns_ = call_.lanes;
      for (int row0 = 0; row0 < frame_.keys; row0 += strip_rows) {
        rows_ = frame_.keys - row0 < strip_rows ? frame_.keys - row0 : strip_rows;
        move_to_row(row0);
        place(Space::diagonal).first = frame_.keys - 1 - row0;
        place(Space::diagonal).row = -1;
        for (const TapeStep* s = step; s != program.steps + program.strip_end; ++s) execute(*s);
        if (call_.lane_max) raise_lane_max();
      }
      move_to_row(0);
      place(Space::diagonal).first = 0;
      place(Space::diagonal).row = 0;
    }
    for (step = program.steps + program.strip_end; step != program.steps + program.count; ++step) execute_alone(*step);
  }

 private:
  static constexpr int kLanes = kVectorBytes / sizeof(Real);
  static constexpr int kWords = kVectorBytes / 4;
  using V = Vec<Real, kLanes>;          ///< of the tile
  using W = Vec<std::int32_t, kWords>;  ///< of a step without reals

  // ---- operands ----

  struct Zeros {
    char bytes[kVectorBytes];
  };
  /// Where the values of a space lie: their first element, and how far apart slots (bytes) and rows (elements) are.
  struct Place {
    char* base;
    std::ptrdiff_t slot, first, row, lane;
  };
  Place& place(Space space) { return places_[static_cast<int>(space)]; }

  void move_to_row(int row) {
    place(Space::key).first = row;
    place(Space::input).first = place(Space::output).first = call_.first_lane + static_cast<std::ptrdiff_t>(row) * frame_.ld;
  }

  template <class T>
  TapeRef ref(TapeOperand operand) const {
    const Place& p = places_[static_cast<int>(operand.space)];
    constexpr std::ptrdiff_t size = sizeof(T);
    return {p.base + operand.slot * p.slot + p.first * size, p.row * size, p.lane};
  }

  /// out = fn(a, b, c) over the rows and columns of the step, N elements at a time. fn ignores the operands that the step does not have.
  template <class Out, class A, class B, class C, int N, class Fn>
  void map(const TapeStep& step, Fn fn) {
    const TapeRef out = ref<Out>(step.out), a = ref<A>(step.a), b = ref<B>(step.b), c = ref<C>(step.c);
    int rows = rows_;
    std::ptrdiff_t columns = columns_;
    const auto dense = [columns](const TapeRef& r, std::ptrdiff_t size) { return r.row == columns * size * r.lane; };
    if (rows > 1 && dense(out, sizeof(Out)) && dense(a, sizeof(A)) && dense(b, sizeof(B)) && dense(c, sizeof(C))) {
      columns *= rows;
      rows = 1;
    }
    const std::ptrdiff_t step_a = a.lane * N * sizeof(A), step_b = b.lane * N * sizeof(B), step_c = c.lane * N * sizeof(C);
    for (int r = 0; r < rows; ++r) {
      char* to = out.p + r * out.row;
      const char *pa = a.p + r * a.row, *pb = b.p + r * b.row, *pc = c.p + r * c.row;
      for (std::ptrdiff_t i = 0; i < columns; i += N) {
        store(to, fn(load<Vec<A, N>>(pa), load<Vec<B, N>>(pb), load<Vec<C, N>>(pc)));
        to += N * sizeof(Out);
        pa += step_a;
        pb += step_b;
        pc += step_c;
      }
    }
  }
  using Int = std::int32_t;
  using Int64 = std::int64_t;
  static constexpr int kLongs = kVectorBytes / 8;
  using L = Vec<Int64, kLongs>;

  // ---- steps ----

  /// A step outside the strips: its whole array at once.
  void execute_alone(const TapeStep& step) {
    rows_ = 1;
    switch (step.rank) {
      case Varies::uniform:
        columns_ = 16;
        break;
      case Varies::row:
        columns_ = call_.lanes;
        break;
      case Varies::column:
        columns_ = (frame_.keys + 15) / 16 * 16;
        break;
      case Varies::diagonal:
        columns_ = (frame_.keys + 15) / 16 * 16 + call_.lanes;
        break;
      case Varies::pair:
        return;
    }
    execute(step);
  }

  void execute(const TapeStep& step) {
    if (sizeof(Real) == 4 && step.wide) return execute_as<double>(step);
    return execute_as<Real>(step);
  }

  /// Long: a row for each operation, of which the compiler makes one table of jumps.
  template <class R>
  void execute_as(const TapeStep& step) {
    using T = TapeTypes<R>;
    using V = typename T::V;
    using I = typename T::I;
    using M = Math<R>;
    using H = Vec<Int, kLongs>;  // as many words as a vector has integers of 64 bits
#define FOVEAL_REAL_STEP(op, expression) \
  case TapeOp::op:                       \
    return map<R, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, [[maybe_unused]] V c) -> V { return expression; })
#define FOVEAL_INTEGER_STEP(op, expression) \
  case TapeOp::op:                          \
    return map<Int, Int, Int, Int, kWords>(step, [](W a, [[maybe_unused]] W b, [[maybe_unused]] W c) -> W { return expression; })
#define FOVEAL_INTEGER64_STEP(op, expression) \
  case TapeOp::op:                            \
    return map<Int64, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, [[maybe_unused]] L c) -> L { return expression; })
#define FOVEAL_COMPARISON64_STEP(op, expression) \
  case TapeOp::op:                               \
    return map<Int, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, L) { return __builtin_convertvector(expression, H); })
#define FOVEAL_COMPARISON_STEP(op, expression) \
  case TapeOp::op:                             \
    return map<Int, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, V) -> I { return T::narrow(expression); })
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

        FOVEAL_REAL_STEP(add_r, a + b);
        FOVEAL_REAL_STEP(sub_r, a - b);
        FOVEAL_REAL_STEP(mul_r, a * b);
        FOVEAL_REAL_STEP(div_r, a / b);
        FOVEAL_REAL_STEP(neg_r, -a);
        FOVEAL_REAL_STEP(abs_r, bits<V>(bits<typename T::Mask>(a) & ~bits<typename T::Mask>(splat<V>(static_cast<R>(-0.0)))));
        FOVEAL_REAL_STEP(min_r, smaller(a, b));
        FOVEAL_REAL_STEP(max_r, larger(a, b));
        FOVEAL_REAL_STEP(floor_div_r, M::floor(a / b));
        FOVEAL_REAL_STEP(mod_r, T::remainder(a, b));
        FOVEAL_REAL_STEP(mul_add, a * b + c);
        FOVEAL_REAL_STEP(mul_sub, a * b - c);
        FOVEAL_REAL_STEP(sub_mul, c - a * b);

        FOVEAL_INTEGER_STEP(add_i, wrapping_add(a, b));
        FOVEAL_INTEGER_STEP(sub_i, wrapping_sub(a, b));
        FOVEAL_INTEGER_STEP(mul_i, wrapping_mul(a, b));
        FOVEAL_INTEGER_STEP(neg_i, wrapping_sub(W{}, a));
        FOVEAL_INTEGER_STEP(abs_i, a < 0 ? wrapping_sub(W{}, a) : a);
        FOVEAL_INTEGER_STEP(min_i, b < a ? b : a);
        FOVEAL_INTEGER_STEP(max_i, b > a ? b : a);
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

        FOVEAL_INTEGER_STEP(bit_and_i, a & b);
        FOVEAL_INTEGER_STEP(bit_or_i, a | b);
        FOVEAL_INTEGER_STEP(bit_xor_i, a ^ b);
        FOVEAL_INTEGER_STEP(shift_left_i, b > 31 ? W{} : wrapping_shift(a, b < 0 ? W{} : b & 31));
        FOVEAL_INTEGER_STEP(shift_right_i, a >> (b < 0 ? W{} : b > 31 ? splat<W>(31) : b));

        FOVEAL_INTEGER64_STEP(add_l, wrapping_add(a, b));
        FOVEAL_INTEGER64_STEP(sub_l, wrapping_sub(a, b));
        FOVEAL_INTEGER64_STEP(mul_l, wrapping_mul(a, b));
        FOVEAL_INTEGER64_STEP(neg_l, wrapping_sub(L{}, a));
        FOVEAL_INTEGER64_STEP(abs_l, a < 0 ? wrapping_sub(L{}, a) : a);
        FOVEAL_INTEGER64_STEP(min_l, b < a ? b : a);
        FOVEAL_INTEGER64_STEP(max_l, b > a ? b : a);
        FOVEAL_INTEGER64_STEP(floor_div_l, quotient64(a, b));
        FOVEAL_INTEGER64_STEP(mod_l, b == 0 ? b : wrapping_sub(a, wrapping_mul(quotient64(a, b), b)));
        FOVEAL_INTEGER64_STEP(bit_and_l, a & b);
        FOVEAL_INTEGER64_STEP(bit_or_l, a | b);
        FOVEAL_INTEGER64_STEP(bit_xor_l, a ^ b);
        FOVEAL_INTEGER64_STEP(shift_left_l, wrapping_shift(a, shift_count64(b)));
        FOVEAL_INTEGER64_STEP(shift_right_l, a >> shift_count64(b));

        FOVEAL_REAL_STEP(exp, M::exp(a));
        FOVEAL_REAL_STEP(exp2, M::exp2(a));
        FOVEAL_REAL_STEP(log, M::log(a));
        FOVEAL_REAL_STEP(log2, M::log2(a));
        FOVEAL_REAL_STEP(sqrt, square_root(a));
        FOVEAL_REAL_STEP(rsqrt, R{1} / square_root(a));
        FOVEAL_REAL_STEP(tanh, M::tanh(a));
        FOVEAL_REAL_STEP(sigmoid, M::sigmoid(a));
        FOVEAL_REAL_STEP(sin, M::sin(a));
        FOVEAL_REAL_STEP(cos, M::cos(a));
        FOVEAL_REAL_STEP(tan, M::tan(a));
        FOVEAL_REAL_STEP(erf, M::erf(a));
        FOVEAL_REAL_STEP(floor, M::floor(a));
        FOVEAL_REAL_STEP(pow, M::pow(a, b));

        FOVEAL_COMPARISON_STEP(eq_r, a == b);
        FOVEAL_COMPARISON_STEP(ne_r, a != b);
        FOVEAL_COMPARISON_STEP(lt_r, a < b);
        FOVEAL_COMPARISON_STEP(le_r, a <= b);
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
      case TapeOp::select_r:
        return map<R, Int, R, R, T::lanes>(step, [](I a, V b, V c) -> V { return T::wide(a) ? b : c; });
        FOVEAL_INTEGER_STEP(select_i, (a & b) | (~a & c));
      case TapeOp::select_l:
        return map<Int64, Int, Int64, Int64, kLongs>(step, [](H a, L b, L c) -> L { return __builtin_convertvector(a, L) ? b : c; });

      case TapeOp::to_real_i:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(a, V); });
      case TapeOp::to_real_b:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(-a, V); });
      case TapeOp::to_integer_r:
        return map<Int, R, R, R, T::lanes>(step, [](V a, V, V) -> I { return T::truncate(a); });
        FOVEAL_INTEGER_STEP(to_integer_b, -a);
        FOVEAL_COMPARISON_STEP(to_boolean_r, a != V{});
        FOVEAL_INTEGER_STEP(to_boolean_i, a != 0);
      case TapeOp::to_real_l:
        return map<R, Int64, Int64, Int64, kLongs>(step, [](L a, L, L) { return __builtin_convertvector(a, Vec<R, kLongs>); });
      case TapeOp::to_integer64_r:
        return map<Int64, R, R, R, kLongs>(step, [](auto a, auto, auto) { return truncate64(a); });
        FOVEAL_COMPARISON64_STEP(to_boolean_l, a != 0);
        FOVEAL_INTEGER64_STEP(to_int32_l, bits<L>(bits<UnsignedVec<L>>(a) << 32) >> 32);
      case TapeOp::lengthen:
        return map<Int64, Int, Int, Int, kLongs>(step, [](H a, H, H) { return __builtin_convertvector(a, L); });
        FOVEAL_COMPARISON64_STEP(shorten, a > 2147483647 ? splat<L>(2147483647) : a < -2147483647 - 1 ? splat<L>(-2147483647 - 1) : a);

        FOVEAL_REAL_STEP(copy_r, a);
      case TapeOp::round:
        return map<Real, double, double, double, kVectorBytes / 8>(
            step, [](auto a, auto, auto) { return __builtin_convertvector(a, Vec<Real, kVectorBytes / 8>); });
        FOVEAL_INTEGER_STEP(copy_i, a);
      case TapeOp::read_r:
        return read_reals<R>(step);
      case TapeOp::read_i:
      case TapeOp::read_l:
      case TapeOp::read_b:
        return read_integers(step);
      case TapeOp::spread:
        return step.integer_bytes == 8 ? spread<Int64>(step) : step.integer_bytes == 4 ? spread<Int>(step) : spread<R>(step);
        FOVEAL_REAL_STEP(guarded_mul, a == R{0} ? a : a * b);

      case TapeOp::zero_r:
        __builtin_memset(ref<Real>(step.out).p, 0, slot_bytes(step.out.space));
        return;
      case TapeOp::sum_keys:
        return sum_keys(step);
      case TapeOp::sum_lanes:
        return sum_lanes(step);
      case TapeOp::sum_diagonals:
        return sum_diagonals(step);
      case TapeOp::sum_all:
        return sum_all(step);
      case TapeOp::accumulate:
        return accumulate(step);
    }
#undef FOVEAL_REAL_STEP
#undef FOVEAL_INTEGER_STEP
#undef FOVEAL_INTEGER64_STEP
#undef FOVEAL_COMPARISON64_STEP
#undef FOVEAL_COMPARISON_STEP
  }

  std::size_t slot_bytes(Space space) const {
    return space == Space::lane ? slots_.lane : space == Space::key ? slots_.key : slots_.diagonal;
  }

  template <class T>
  void fill(const TapeStep& step, T value) {
    T* out = reinterpret_cast<T*>(ref<T>(step.out).p);
    for (std::ptrdiff_t i = 0; i < columns_; ++i) out[i] = value;
  }
  void count(const TapeStep& step, Int first, Int by) {
    Int* out = reinterpret_cast<Int*>(ref<Int>(step.out).p);
    for (std::ptrdiff_t i = 0; i < columns_; ++i) out[i] = first + by * static_cast<Int>(i);
  }

  template <class T>
  void spread(const TapeStep& step) {
    const T* from = reinterpret_cast<const T*>(ref<T>(step.a).p);
    T* to = reinterpret_cast<T*>(ref<T>(step.out).p);
    for (int r = 0; r < rows_; ++r, to += 16) {
      for (int i = 0; i < 16; ++i) to[i] = from[r];
    }
  }

  /// Integer division rounding down; 0 for a divisor of 0. A double quotient of 32-bit integers is on the right side of every integer.
  template <class N>
  static N quotient(N a, N b) {
    using D = Vec<double, sizeof(N) / 4>;
    using L = Vec<std::int64_t, sizeof(N) / 4>;
    const N zero = b == 0;
    const N divisor = zero ? N{} + 1 : b;
    const D exact = __builtin_convertvector(a, D) / __builtin_convertvector(divisor, D);
    // INT_MIN / -1 leaves 32 bits and wraps.
    const D in_range = exact >= 2147483648.0 ? exact - 4294967296.0 : exact;
    const N towards_zero = __builtin_convertvector(in_range, N);
    const L above = __builtin_convertvector(towards_zero, D) > in_range;
    return zero ? N{} : towards_zero + __builtin_convertvector(above, N);
  }

  /// The same of 64 bits, one by one.
  static L quotient64(L a, L b) {
    Int64 x[kLongs], y[kLongs];
    store(x, a);
    store(y, b);
    for (int i = 0; i < kLongs; ++i) {
      if (y[i] == 0 || y[i] == -1) {
        x[i] = y[i] == 0 ? 0 : static_cast<Int64>(0 - static_cast<std::uint64_t>(x[i]));
      } else {
        const Int64 towards_zero = x[i] / y[i];
        x[i] = towards_zero - (x[i] % y[i] != 0 && (x[i] < 0) != (y[i] < 0));
      }
    }
    return load<L>(x);
  }
  static L shift_count64(L b) { return b < 0 ? L{} : b > 63 ? splat<L>(63) : b; }

  /// Towards zero; what 64 bits do not hold is moved to the nearest that they do, NaN becomes 0.
  template <class A>
  static L truncate64(A x) {
    using D = Vec<double, kLongs>;
    const D given = __builtin_convertvector(x, D);
    const D number = given == given ? given : D{};
    const D low = number < -0x1p63 ? splat<D>(-0x1p63) : number;
    const L high = low >= 0x1p63;
    const L result = __builtin_convertvector(high ? D{} : low, L);
    return high ? splat<L>(INT64_MAX) : result;
  }

  /// By one positive number for all, which needs no division: the truncated product with its reciprocal is one off at most. That holds in
  /// double for all integers, in float for those below 2^22, which positions mostly are.
  struct Division {
    explicit Division(Int by) : divisor(by), reciprocal(1.0 / by), short_reciprocal(static_cast<float>(1.0 / by)) {}
    W quotient(W a) const {
      constexpr Int limit = 1 << 22;
      const W near = any((a > limit) | (a < -limit)) ? near_quotient<double>(a, reciprocal) : near_quotient<float>(a, short_reciprocal);
      const W rest = wrapping_sub(a, wrapping_mul(near, splat<W>(divisor)));
      return near + (rest < 0) - (rest >= divisor);  // comparisons are 0 or -1
    }
    template <class R>
    static W near_quotient(W a, R factor) {
      return __builtin_convertvector(__builtin_convertvector(a, Vec<R, kWords>) * factor, W);
    }
    Int divisor;
    double reciprocal;
    float short_reciprocal;
  };
  /// The divisor of a step, when it is positive and the same for the whole tile; otherwise 0.
  Int common_divisor(const TapeStep& step) const {
    const TapeRef b = ref<Int>(step.b);
    const Int divisor = b.row == 0 && b.lane == 0 ? *reinterpret_cast<const Int*>(b.p) : 0;
    return divisor > 0 ? divisor : 0;
  }

  // ---- reads ----

  /// A place with its operands resolved: the uniform dimensions are already in `base`.
  struct Address {
    struct Dim {
      TapeRef index;
      Int last;
      std::int64_t stride;
    };
    std::int64_t base;
    int rank;
    bool narrow;
    Dim dims[TensorView::max_rank];
  };

  static Int clamped(Int index, Int last) { return index < 0 ? 0 : index > last ? last : index; }

  Address address(const TapePlace& place) const {
    Address address;
    address.base = 0;
    address.rank = 0;
    address.narrow = place.narrow;
    for (int d = 0; d < place.rank; ++d) {
      const TapePlace::Dim& dim = place.dims[d];
      const TapeRef index = ref<Int>(dim.index);
      if (index.lane == 0 && index.row == 0) {
        address.base += clamped(*reinterpret_cast<const Int*>(index.p), dim.size - 1) * dim.stride;
      } else {
        address.dims[address.rank++] = {index, dim.size - 1, dim.stride};
      }
    }
    return address;
  }

  /// Calls fn(offsets, row, column) for every 16 elements of the step; offsets are relative to address.base and of type Int or int64.
  template <class Fn>
  void each_address(const Address& address, Fn fn) const {
    constexpr int vectors = 16 / kWords;
    for (int r = 0; r < rows_; ++r) {
      for (std::ptrdiff_t i = 0; i < columns_; i += 16) {
        if (address.narrow) {
          alignas(64) Int offsets[16];
          for (int v = 0; v < vectors; ++v) {
            W sum{};
            for (int d = 0; d < address.rank; ++d) {
              const typename Address::Dim& dim = address.dims[d];
              W index = load<W>(dim.index.p + r * dim.index.row + (i + v * kWords) * dim.index.lane * sizeof(Int));
              index = index < 0 ? W{} : index;
              index = index > dim.last ? splat<W>(dim.last) : index;
              sum += index * static_cast<Int>(dim.stride);
            }
            store(offsets + v * kWords, sum);
          }
          fn(offsets, r, i);
        } else {
          std::int64_t offsets[16] = {};
          for (int d = 0; d < address.rank; ++d) {
            const typename Address::Dim& dim = address.dims[d];
            const Int* index = reinterpret_cast<const Int*>(dim.index.p + r * dim.index.row +
                                                            i * dim.index.lane * static_cast<std::ptrdiff_t>(sizeof(Int)));
            for (int k = 0; k < 16; ++k) offsets[k] += clamped(index[k * dim.index.lane], dim.last) * dim.stride;
          }
          fn(offsets, r, i);
        }
      }
    }
  }

  /// An address that is a sum of something of the lane and something of the row.
  struct Separable {
    Int lane[16];  ///< of 16 lanes
    Int row[tape_strip_rows(TileFrame::lane_multiple)];
    bool lanes_follow;                      ///< lane[k] = lane[0] + k
    bool rows_follow(int r, int n) const {  ///< row[r + k] = row[r] + k for k < n
      for (int k = 1; k < n; ++k)
        if (row[r + k] != row[r] + k) return false;
      return true;
    }
  };

  /// False when some index varies freely over the tile.
  bool separate_rows(const Address& address, Separable& parts) const {
    if (!address.narrow) return false;
    for (int r = 0; r < rows_; ++r) parts.row[r] = 0;
    for (int d = 0; d < address.rank; ++d) {
      const typename Address::Dim& dim = address.dims[d];
      if (dim.index.row != 0 && dim.index.lane != 0) return false;
      if (dim.index.lane != 0) continue;
      for (int r = 0; r < rows_; ++r)
        parts.row[r] += clamped(*reinterpret_cast<const Int*>(dim.index.p + r * dim.index.row), dim.last) * static_cast<Int>(dim.stride);
    }
    return true;
  }
  void separate_lanes(const Address& address, std::ptrdiff_t first, Separable& parts) const {
    for (int k = 0; k < 16; ++k) parts.lane[k] = 0;
    for (int d = 0; d < address.rank; ++d) {
      const typename Address::Dim& dim = address.dims[d];
      if (dim.index.lane == 0) continue;
      const Int* index = reinterpret_cast<const Int*>(dim.index.p) + first;
      for (int k = 0; k < 16; ++k) parts.lane[k] += clamped(index[k], dim.last) * static_cast<Int>(dim.stride);
    }
    Int breaks = 0;
    for (int k = 1; k < 16; ++k) breaks |= parts.lane[k] - parts.lane[0] - k;
    parts.lanes_follow = breaks == 0;
  }

  template <class Out, class Stored, class Convert>
  void read(const TapeStep& step, Convert convert) {
    const TapePlace& place = call_.program->places[step.place];
    const Address at = address(place);
    const Stored* data = static_cast<const Stored*>(call_.data->params[place.param].data) + at.base;
    const TapeRef out = ref<Out>(step.out);
    if (at.rank == 0) return fill<Out>(step, convert(*data));  // never in a strip: such a value is uniform
    Separable parts;
    if (rows_ == 1 || !separate_rows(at, parts)) {
      return each_address(at, [&](const auto& offsets, int r, std::ptrdiff_t i) {
        Out* to = reinterpret_cast<Out*>(out.p + r * out.row) + i;
        for (int k = 0; k < 16; ++k) to[k] = convert(data[offsets[k]]);
      });
    }
    for (std::ptrdiff_t i = 0; i < columns_; i += 16) {
      separate_lanes(at, i, parts);
      const auto to = [&](int r) { return reinterpret_cast<Out*>(out.p + r * out.row) + i; };
      int r = 0;
      if (parts.lanes_follow) {
        for (; r < rows_; ++r) {
          const Stored* from = data + parts.row[r] + parts.lane[0];
          Out* row = to(r);
          for (int k = 0; k < 16; ++k) row[k] = convert(from[k]);
        }
      }
      // Rows that follow each other in memory: 16 of them from each lane at once, turned over in a square of 16 x 16.
      for (; r + 16 <= rows_ && parts.rows_follow(r, 16); r += 16) {
        alignas(64) Out square[16][16];
        for (int k = 0; k < 16; ++k) {
          const Stored* from = data + parts.row[r] + parts.lane[k];
          for (int j = 0; j < 16; ++j) square[k][j] = convert(from[j]);
        }
        transpose(square);
        for (int j = 0; j < 16; ++j) __builtin_memcpy(to(r + j), square[j], sizeof square[j]);
      }
      for (; r < rows_; ++r) {
        Out* row = to(r);
        for (int k = 0; k < 16; ++k) row[k] = convert(data[parts.row[r] + parts.lane[k]]);
      }
    }
  }

  /// Swaps rows and columns: four times the perfect shuffle of rows, or of halves of rows where a vector is shorter.
  template <class T>
  static void transpose(T (&square)[16][16]) {
    constexpr int n = kVectorBytes / sizeof(T) < 16 ? kVectorBytes / sizeof(T) : 16;
    using Row = Vec<T, n>;
    T turned[16][16];
    for (int a = 0; a < 16; a += n) {
      for (int b = 0; b < 16; b += n) {
        Row rows[n], next[n];
        for (int k = 0; k < n; ++k) rows[k] = load<Row>(&square[a + k][b]);
        for (int width = 1; width < n; width *= 2) {
          for (int k = 0; k < n / 2; ++k) {
            next[2 * k] = interleave_low(rows[k], rows[k + n / 2]);
            next[2 * k + 1] = interleave_high(rows[k], rows[k + n / 2]);
          }
          for (int k = 0; k < n; ++k) rows[k] = next[k];
        }
        for (int k = 0; k < n; ++k) store(&turned[b + k][a], rows[k]);
      }
    }
    __builtin_memcpy(square, turned, sizeof square);
  }

  static float float_of_bf16(std::uint16_t b) {
    const std::uint32_t wide = static_cast<std::uint32_t>(b) << 16;
    float value;
    __builtin_memcpy(&value, &wide, 4);
    return value;
  }
  static float float_of_f16(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, mantissa = half & 0x3FFu;
    const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
    std::uint32_t magnitude;
    __builtin_memcpy(&magnitude, &subnormal, 4);
    if (exponent == 31)
      magnitude = 0x7F800000u | (mantissa << 13);
    else if (exponent != 0)
      magnitude = ((exponent + 112u) << 23) | (mantissa << 13);
    magnitude |= sign;
    float value;
    __builtin_memcpy(&value, &magnitude, 4);
    return value;
  }

  template <class R>
  void read_reals(const TapeStep& step) {
    switch (call_.data->params[call_.program->places[step.place].param].dtype) {
      case DType::f64:
        return read<R, double>(step, [](double x) { return static_cast<R>(x); });
      case DType::f32:
        return read<R, float>(step, [](float x) { return static_cast<R>(x); });
      case DType::bf16:
        return read<R, std::uint16_t>(step, [](std::uint16_t x) { return static_cast<R>(float_of_bf16(x)); });
      case DType::f16:
        return read<R, std::uint16_t>(step, [](std::uint16_t x) { return static_cast<R>(float_of_f16(x)); });
      default:
        return;
    }
  }

  template <class Stored>
  void read_integers_of(const TapeStep& step) {
    if (step.op == TapeOp::read_l) return read<Int64, Stored>(step, [](Stored x) { return static_cast<Int64>(x); });
    if (step.op == TapeOp::read_b) return read<Int, Stored>(step, [](Stored x) { return x != 0 ? Int{-1} : Int{0}; });
    return read<Int, Stored>(step, [](Stored x) {
      if constexpr (sizeof(Stored) == 8)
        return static_cast<Int>(x > 2147483647 ? 2147483647 : x < -2147483647 - 1 ? -2147483647 - 1 : x);
      else
        return static_cast<Int>(x);
    });
  }

  void read_integers(const TapeStep& step) {
    switch (call_.data->params[call_.program->places[step.place].param].dtype) {
      case DType::i64:
        return read_integers_of<std::int64_t>(step);
      case DType::i32:
        return read_integers_of<std::int32_t>(step);
      case DType::i16:
        return read_integers_of<std::int16_t>(step);
      case DType::i8:
        return read_integers_of<std::int8_t>(step);
      case DType::u8:
      case DType::boolean:
        return read_integers_of<std::uint8_t>(step);
      default:
        return;
    }
  }

  // ---- sums ----

  /// lane value out += sum of a over the rows of the strip
  void sum_keys(const TapeStep& step) {
    const TapeRef from = ref<Real>(step.a);
    char* to = ref<Real>(step.out).p;
    for (std::ptrdiff_t i = 0; i < columns_; i += kLanes) {
      V sum = load<V>(to + i * sizeof(Real));
      const char* p = from.p + i * sizeof(Real);
      for (int r = 0; r < rows_; ++r, p += from.row) sum += load<V>(p);
      store(to + i * sizeof(Real), sum);
    }
  }

  /// key value out = sum of a over the lanes
  void sum_lanes(const TapeStep& step) {
    const TapeRef from = ref<Real>(step.a);
    Real* to = reinterpret_cast<Real*>(ref<Real>(step.out).p);
    for (int r = 0; r < rows_; ++r) {
      const char* p = from.p + r * from.row;
      V sum{};
      for (std::ptrdiff_t i = 0; i < columns_; i += kLanes) sum += load<V>(p + i * sizeof(Real));
      Real total = 0;
      for (int k = 0; k < kLanes; ++k) total += sum[k];
      to[r] = total;
    }
  }

  /// diagonal value out += sums of a along its diagonals. A vector of running sums moves up one lane with every row, so that each lane
  /// stays on its diagonal; what leaves at the top is finished and shifts into a second vector. Together they are a contiguous piece of
  /// out.
  void sum_diagonals(const TapeStep& step) {
    const TapeRef from = ref<Real>(step.a);
    Real* out = reinterpret_cast<Real*>(ref<Real>(step.out).p);  // lane 0 of the first row
    for (std::ptrdiff_t i = 0; i < columns_; i += kLanes) {
      const char* p = from.p + i * sizeof(Real);
      for (int first = 0; first < rows_; first += kLanes) {
        const int last = first + kLanes < rows_ ? first + kLanes : rows_;
        V running{}, finished{};
        for (int r = first; r < last; ++r, p += from.row) {
          finished = shift_in(running, finished);
          running = shift_in(V{}, running);
          running += load<V>(p);
        }
        Real* to = out + i - (last - 1);
        store(to, load<V>(to) + running);
        store(to + kLanes, load<V>(to + kLanes) + finished);
      }
    }
  }

  /// uniform value out = sum of the valid lanes of a
  void sum_all(const TapeStep& step) {
    const Real* from = reinterpret_cast<const Real*>(ref<Real>(step.a).p);
    double sum = 0;
    for (int i = 0; i < call_.valid_lanes; ++i) sum += static_cast<double>(from[i]);
    fill<Real>(step, static_cast<Real>(sum));
  }

  /// accumulators[place] += a, element by element in the order of rows and lanes
  void accumulate(const TapeStep& step) {
    const TapePlace& place = call_.program->places[step.place];
    if (!call_.grads || !call_.grads->params[place.param].data) return;
    if (call_.grads->params[place.param].wide) return accumulate_into<double>(step, place);
    return accumulate_into<float>(step, place);
  }

  template <class Sum>
  void accumulate_into(const TapeStep& step, const TapePlace& place) {
    const Address at = address(place);
    Sum* sums = static_cast<Sum*>(call_.grads->params[place.param].data) + at.base;
    const TapeRef from = ref<Real>(step.a);
    if (at.rank == 0) {
      sums[0] += static_cast<Sum>(*reinterpret_cast<const Real*>(from.p));
      return;
    }
    int valid = 0;
    switch (step.rank) {
      case Varies::uniform:
        valid = 1;
        break;
      case Varies::column:
        valid = frame_.keys;
        break;
      case Varies::diagonal:
        valid = frame_.keys + call_.valid_lanes - 1;
        break;
      case Varies::row:
      case Varies::pair:
        valid = call_.valid_lanes;
        break;
    }
    const auto values = [&](int r, std::ptrdiff_t i) { return reinterpret_cast<const Real*>(from.p + r * from.row) + i; };
    const auto valid_of = [&](std::ptrdiff_t i) { return valid - i < 16 ? static_cast<int>(valid - i) : 16; };
    Separable parts;
    if (rows_ == 1 || !separate_rows(at, parts)) {
      return each_address(at, [&](const auto& offsets, int r, std::ptrdiff_t i) {
        const Real* value = values(r, i);
        for (int k = 0; k < valid_of(i); ++k) sums[offsets[k]] += static_cast<Sum>(value[k]);
      });
    }
    for (std::ptrdiff_t i = 0; i < valid; i += 16) {
      separate_lanes(at, i, parts);
      const int n = valid_of(i);
      int r = 0;
      if (parts.lanes_follow) {
        for (; r < rows_; ++r) add_run(sums + parts.row[r] + parts.lane[0], values(r, i), n);
      }
      for (; r + 16 <= rows_ && parts.rows_follow(r, 16); r += 16) {
        alignas(64) Real square[16][16];
        for (int j = 0; j < 16; ++j) __builtin_memcpy(square[j], values(r + j, i), sizeof square[j]);
        transpose(square);
        for (int k = 0; k < n; ++k) add_run(sums + parts.row[r] + parts.lane[k], square[k], 16);
      }
      for (; r < rows_; ++r) {
        const Real* value = values(r, i);
        for (int k = 0; k < n; ++k) sums[parts.row[r] + parts.lane[k]] += static_cast<Sum>(value[k]);
      }
    }
  }

  template <class Sum>
  static void add_run(Sum* sums, const Real* values, int n) {
    for (int k = 0; k < n; ++k) sums[k] += static_cast<Sum>(values[k]);
  }

  void raise_lane_max() const {
    const TapeRef from = ref<Real>({Space::output, 0});
    char* max = static_cast<char*>(call_.lane_max) + call_.first_lane * sizeof(Real);
    int i = 0;
    for (; i + 4 * kLanes <= call_.lanes; i += 4 * kLanes) raise_max<4>(max + i * sizeof(Real), from.p + i * sizeof(Real), from.row);
    for (; i < call_.lanes; i += kLanes) raise_max<1>(max + i * sizeof(Real), from.p + i * sizeof(Real), from.row);
  }

  template <int N>
  void raise_max(char* max, const char* p, std::ptrdiff_t row) const {
    V high[N];
    for (int k = 0; k < N; ++k) high[k] = load<V>(max + k * sizeof(V));
    for (int r = 0; r < rows_; ++r, p += row) {
      for (int k = 0; k < N; ++k) {
        const V x = load<V>(p + k * sizeof(V));
        high[k] = larger(high[k], x);
      }
    }
    for (int k = 0; k < N; ++k) store(max + k * sizeof(V), high[k]);
  }

  const TapeCall& call_;
  const TileFrame& frame_;
  const TapeSlots slots_;
  Place places_[static_cast<int>(Space::output) + 1];
  int rows_ = 1;
  std::ptrdiff_t columns_ = 0;
};

template <class Real>
void run_tape(const TapeCall& call) {
  TapeRun<Real>(call).run();
}

}  // namespace
}  // namespace foveal::cpu
