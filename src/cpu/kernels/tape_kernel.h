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
  using Mask = Vec<typename IntegerLike<R>::type, lanes>;  ///< as wide as V

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
    uniform_ = call.scratch;
    lane_ = uniform_ + slots_.uniform * program.uniforms;
    key_ = lane_ + slots_.lane * program.lanes;
    key_spread_ = key_ + slots_.key * program.keys;
    diagonal_ = key_spread_ + slots_.key_spread * program.key_spreads;
    strip_ = diagonal_ + slots_.diagonal * program.diagonals;
  }

  void run() {
    const TapeProgram& program = *call_.program;
    const TapeStep* step = program.steps;
    for (; step != program.steps + program.strip_begin; ++step) execute_alone(*step);
    if (program.strip_end > program.strip_begin) {
      const int strip_rows = tape_strip_rows(call_.lanes);
      for (row0_ = 0; row0_ < frame_.keys; row0_ += strip_rows) {
        rows_ = frame_.keys - row0_ < strip_rows ? frame_.keys - row0_ : strip_rows;
        columns_ = call_.lanes;
        in_strip_ = true;
        for (const TapeStep* s = step; s != program.steps + program.strip_end; ++s) execute(*s);
        in_strip_ = false;
        if (call_.lane_max) raise_lane_max();
      }
    }
    for (step = program.steps + program.strip_end; step != program.steps + program.count; ++step) execute_alone(*step);
  }

 private:
  static constexpr int kLanes = kVectorBytes / sizeof(Real);
  static constexpr int kWords = kVectorBytes / 4;
  using V = Vec<Real, kLanes>;          ///< of the tile
  using W = Vec<std::int32_t, kWords>;  ///< of a step without reals

  // ---- operands ----

  template <class T>
  TapeRef ref(TapeOperand operand) const {
    const std::ptrdiff_t slot = operand.slot;
    const std::ptrdiff_t size = sizeof(T);
    switch (operand.space) {
      case Space::uniform:
        return {uniform_ + slot * slots_.uniform, 0, 0};
      case Space::lane:
        return {lane_ + slot * slots_.lane, 0, 1};
      case Space::key:
        return {key_ + slot * slots_.key + (in_strip_ ? row0_ * size : 0), size, 1};
      case Space::key_spread:
        return {key_spread_ + slot * slots_.key_spread, 16 * size, 0};
      case Space::diagonal: {
        char* first = diagonal_ + slot * slots_.diagonal;
        if (in_strip_) return {first + (frame_.keys - 1 - row0_) * size, -size, 1};
        return {first, 0, 1};
      }
      case Space::strip:
        return {strip_ + slot * slots_.strip, call_.lanes * size, 1};
      case Space::lane_q:
        return {const_cast<char*>(reinterpret_cast<const char*>(frame_.q_idx + call_.first_lane)), 0, 1};
      case Space::lane_head:
        return {const_cast<char*>(reinterpret_cast<const char*>(frame_.head + call_.first_lane)), 0, 1};
      case Space::input:
        return tile(const_cast<void*>(call_.input));
      case Space::output:
        return tile(call_.output);
      case Space::none:
        break;
    }
    return {nullptr, 0, 0};
  }
  TapeRef tile(void* data) const {
    const std::ptrdiff_t size = sizeof(Real);
    return {static_cast<char*>(data) + (static_cast<std::ptrdiff_t>(row0_) * frame_.ld + call_.first_lane) * size, frame_.ld * size, 1};
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

  // ---- steps ----

  /// A step outside the strips: its whole array at once.
  void execute_alone(const TapeStep& step) {
    row0_ = 0;
    rows_ = 1;
    switch (step.rank) {
      case Rank::uniform:
        columns_ = 16;
        break;
      case Rank::lane:
        columns_ = call_.lanes;
        break;
      case Rank::key:
        columns_ = (frame_.keys + 15) / 16 * 16;
        break;
      case Rank::diagonal:
        columns_ = (frame_.keys + 15) / 16 * 16 + call_.lanes;
        break;
      case Rank::full:
        return;
    }
    execute(step);
  }

  void execute(const TapeStep& step) {
    if (sizeof(Real) == 4 && step.wide) return execute_as<double>(step);
    return execute_as<Real>(step);
  }

  template <class R>
  void execute_as(const TapeStep& step) {
    using T = TapeTypes<R>;
    using V = typename T::V;
    using I = typename T::I;
    using M = Math<R>;
#define FOVEAL_REAL_STEP(op, expression) \
  case TapeOp::op:                       \
    return map<R, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, [[maybe_unused]] V c) -> V { return expression; })
#define FOVEAL_INTEGER_STEP(op, expression) \
  case TapeOp::op:                          \
    return map<Int, Int, Int, Int, kWords>(step, [](W a, [[maybe_unused]] W b, [[maybe_unused]] W c) -> W { return expression; })
#define FOVEAL_COMPARISON_STEP(op, expression) \
  case TapeOp::op:                             \
    return map<Int, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, V) -> I { return T::narrow(expression); })
    switch (step.op) {
      case TapeOp::constant_r:
        return fill<R>(step, static_cast<R>(step.real));
      case TapeOp::constant_i:
        return fill<Int>(step, step.integer);
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
        FOVEAL_REAL_STEP(min_r, b < a ? b : a);
        FOVEAL_REAL_STEP(max_r, a < b ? b : a);
        FOVEAL_REAL_STEP(floor_div_r, M::floor(a / b));
        FOVEAL_REAL_STEP(mod_r, T::remainder(a, b));
        FOVEAL_REAL_STEP(mul_add, a * b + c);
        FOVEAL_REAL_STEP(mul_sub, a * b - c);
        FOVEAL_REAL_STEP(sub_mul, c - a * b);

        FOVEAL_INTEGER_STEP(add_i, a + b);
        FOVEAL_INTEGER_STEP(sub_i, a - b);
        FOVEAL_INTEGER_STEP(mul_i, a * b);
        FOVEAL_INTEGER_STEP(neg_i, -a);
        FOVEAL_INTEGER_STEP(abs_i, a < 0 ? -a : a);
        FOVEAL_INTEGER_STEP(min_i, b < a ? b : a);
        FOVEAL_INTEGER_STEP(max_i, b > a ? b : a);
      case TapeOp::floor_div_i:
        return map<Int, Int, Int, Int, kVectorBytes / 8>(step, [](auto a, auto b, auto) { return quotient(a, b); });
      case TapeOp::mod_i:
        return map<Int, Int, Int, Int, kVectorBytes / 8>(step, [](auto a, auto b, auto) { return b == 0 ? b : a - quotient(a, b) * b; });

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
        FOVEAL_INTEGER_STEP(and_b, a & b);
        FOVEAL_INTEGER_STEP(or_b, a | b);
        FOVEAL_INTEGER_STEP(not_b, ~a);
        FOVEAL_INTEGER_STEP(xor_b, a ^ b);
      case TapeOp::select_r:
        return map<R, Int, R, R, T::lanes>(step, [](I a, V b, V c) -> V { return T::wide(a) ? b : c; });
        FOVEAL_INTEGER_STEP(select_i, (a & b) | (~a & c));

      case TapeOp::real_of_i:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(a, V); });
      case TapeOp::real_of_b:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(-a, V); });
      case TapeOp::integer_of_r:
        return map<Int, R, R, R, T::lanes>(step, [](V a, V, V) -> I { return T::truncate(a); });
        FOVEAL_INTEGER_STEP(integer_of_b, -a);
        FOVEAL_COMPARISON_STEP(boolean_of_r, a != V{});
        FOVEAL_INTEGER_STEP(boolean_of_i, a != 0);

        FOVEAL_REAL_STEP(copy_r, a);
      case TapeOp::round:
        return map<Real, double, double, double, kVectorBytes / 8>(
            step, [](auto a, auto, auto) { return __builtin_convertvector(a, Vec<Real, kVectorBytes / 8>); });
        FOVEAL_INTEGER_STEP(copy_i, a);
      case TapeOp::read_r:
        return read_reals<R>(step);
      case TapeOp::read_i:
      case TapeOp::read_b:
        return read_integers(step);
      case TapeOp::spread:
        return step.integer ? spread<Int>(step) : spread<R>(step);
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

  template <class Out, class Stored, class Convert>
  void read(const TapeStep& step, Convert convert) {
    const TapePlace& place = call_.program->places[step.place];
    const Address at = address(place);
    const Stored* data = static_cast<const Stored*>(call_.data->params[place.param].data) + at.base;
    const TapeRef out = ref<Out>(step.out);
    if (at.rank == 0) return fill<Out>(step, convert(*data));  // never in a strip: such a value is uniform
    each_address(at, [&](const auto& offsets, int r, std::ptrdiff_t i) {
      Out* to = reinterpret_cast<Out*>(out.p + r * out.row) + i;
      for (int k = 0; k < 16; ++k) to[k] = convert(data[offsets[k]]);
    });
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
    Real* out = reinterpret_cast<Real*>(ref<Real>(TapeOperand{step.out.space, step.out.slot}).p);  // at row0_: element lane of row row0_
    const auto up = iota<typename TapeTypes<Real>::Mask>() +
                    (kLanes - 1);  // of (below, above): lane i takes above[i - 1], lane 0 takes below[kLanes - 1]
    for (std::ptrdiff_t i = 0; i < columns_; i += kLanes) {
      const char* p = from.p + i * sizeof(Real);
      for (int first = 0; first < rows_; first += kLanes) {
        const int last = first + kLanes < rows_ ? first + kLanes : rows_;
        V running{}, finished{};
        for (int r = first; r < last; ++r, p += from.row) {
          finished = __builtin_shuffle(running, finished, up);
          running = __builtin_shuffle(V{}, running, up);
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
      case Rank::uniform:
        valid = 1;
        break;
      case Rank::key:
        valid = frame_.keys;
        break;
      case Rank::diagonal:
        valid = frame_.keys + call_.valid_lanes - 1;
        break;
      case Rank::lane:
      case Rank::full:
        valid = call_.valid_lanes;
        break;
    }
    each_address(at, [&](const auto& offsets, int r, std::ptrdiff_t i) {
      const Real* values = reinterpret_cast<const Real*>(from.p + r * from.row) + i;
      const int n = valid - i < 16 ? static_cast<int>(valid - i) : 16;
      for (int k = 0; k < n; ++k) sums[offsets[k]] += static_cast<Sum>(values[k]);
    });
  }

  void raise_lane_max() const {
    const TapeRef from = tile(call_.output);
    Real* max = static_cast<Real*>(call_.lane_max) + call_.first_lane;
    for (int i = 0; i < call_.lanes; i += kLanes) {
      V high = load<V>(max + i);
      const char* p = from.p + i * sizeof(Real);
      for (int r = 0; r < rows_; ++r, p += from.row) {
        const V x = load<V>(p);
        high = x > high ? x : high;
      }
      store(max + i, high);
    }
  }

  const TapeCall& call_;
  const TileFrame& frame_;
  const TapeSlots slots_;
  char *uniform_, *lane_, *key_, *key_spread_, *diagonal_, *strip_;
  int row0_ = 0, rows_ = 1;
  std::ptrdiff_t columns_ = 0;
  bool in_strip_ = false;
};

template <class Real>
void run_tape(const TapeCall& call) {
  TapeRun<Real>(call).run();
}

}  // namespace
}  // namespace foveal::cpu
