#include "problem/random_line.h"

#include <algorithm>
#include <array>

#include "base/divide.h"

namespace foveal::problem {
namespace {

template <class T, std::size_t N>
const T& pick(base::Random& random, const std::array<T, N>& values) {
  return values[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(N) - 1))];
}

/// Favours sizes around the edges of tiles and vectors.
std::int64_t edge_size(base::Random& random, std::int64_t largest) {
  static constexpr std::array<std::int64_t, 14> edges{1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128};
  const std::int64_t size = random.chance(0.6) ? pick(random, edges) + random.integer(-1, 1) : random.integer(1, largest);
  return std::clamp<std::int64_t>(size, 1, largest);
}

class Generator {
 public:
  Generator(base::Random& program, base::Random& sizes, const RandomLimits& limits) : random_(program), sizes_(sizes), limits_(limits) {}

  Line operator()() {
    sizes();
    layout();
    if (random_.chance(0.55)) mask();
    if (random_.chance(0.55)) score();
    if (random_.chance(0.2)) sink();
    variation();
    line_.seed = sizes_.bits() >> 32;
    if (random_.chance(0.2)) pages();
    return std::move(line_);
  }

 private:
  void sizes() {
    static constexpr std::array<DType, 8> dtypes{DType::f32,  DType::f32, DType::f32, DType::bf16,
                                                 DType::bf16, DType::f16, DType::f16, DType::f64};
    line_.pass = random_.chance(0.4) ? Pass::forward : Pass::backward;
    line_.dtype = pick(random_, dtypes);
    line_.heads_kv = sizes_.integer(1, 3);
    line_.heads_q = line_.heads_kv * sizes_.integer(1, 4);
    line_.batch = sizes_.integer(1, 3);
    line_.head_dim = head_dim();
    line_.head_dim_v = random_.chance(0.7) ? line_.head_dim : head_dim();
    line_.seqlen_q = edge_size(sizes_, limits_.seqlen);
    line_.seqlen_kv = sizes_.chance(0.5) ? line_.seqlen_q : edge_size(sizes_, limits_.seqlen);
    while (line_.batch * line_.heads_q * line_.seqlen_q * line_.seqlen_kv > limits_.pairs && line_.batch * line_.heads_q > 1) {
      if (line_.batch > 1)
        line_.batch = 1;
      else if (line_.heads_kv > 1)
        line_.heads_q /= line_.heads_kv, line_.heads_kv = 1;
      else
        line_.heads_q = 1;
    }
  }

  std::int64_t head_dim() {
    static constexpr std::array<std::int64_t, 8> usual{16, 32, 64, 64, 80, 96, 128, 128};
    if (random_.chance(0.5)) return std::min(pick(random_, usual), limits_.head_dim);
    if (random_.chance(0.05)) return random_.integer(limits_.head_dim, 512);
    return edge_size(random_, limits_.head_dim);
  }

  void layout() {
    static constexpr std::array<Layout, 8> layouts{Layout::bshd, Layout::bshd,   Layout::bhsd,      Layout::bhsd,
                                                   Layout::sbhd, Layout::padded, Layout::dim_first, Layout::packed_qkv};
    line_.layout = pick(sizes_, layouts);
    if (random_.chance(0.2)) {
      line_.varlen = true;
      const bool same = sizes_.chance(0.5);
      line_.batch = sizes_.integer(1, 4);
      for (std::int64_t i = 0; i < line_.batch; ++i) {
        const std::int64_t q = sizes_.chance(0.1) && i > 0 ? 0 : edge_size(sizes_, line_.seqlen_q);
        const std::int64_t kv = same ? q : sizes_.chance(0.1) && i > 0 ? 0 : edge_size(sizes_, line_.seqlen_kv);
        line_.lengths.emplace_back(q, kv);
        line_.total_q += q, line_.total_kv += kv;
      }
      line_.seqlen_q = line_.seqlen_kv = 0;
      for (const auto& [q, kv] : line_.lengths)
        line_.seqlen_q = std::max(line_.seqlen_q, q), line_.seqlen_kv = std::max(line_.seqlen_kv, kv);
      if (random_.chance(0.3)) line_.cu_seqlens_dtype = DType::i64;
    }
    const bool same = line_.varlen ? line_.total_q == line_.total_kv : line_.seqlen_q == line_.seqlen_kv;
    if (line_.layout == Layout::packed_qkv && !same) line_.layout = Layout::bshd;
    if (random_.chance(0.1)) line_.attention.q_offset = sizes_.integer(0, 100);
    if (random_.chance(0.1)) line_.attention.kv_offset = sizes_.integer(0, 100);
  }

  /// Turns the keys drawn so far into paged ones.
  void pages() {
    static constexpr std::array<std::int64_t, 6> sizes{16, 16, 32, 48, 64, 128};
    line_.page_size = pick(random_, sizes);
    if (line_.layout == Layout::packed_qkv) line_.layout = Layout::bshd;
    if (!line_.varlen)
      for (std::int64_t i = 0; i < line_.batch; ++i)
        line_.lengths.emplace_back(line_.seqlen_q, sizes_.chance(0.1) ? 0 : sizes_.integer(1, line_.seqlen_kv));
    line_.total_kv = 0;
    line_.seqlen_kv = base::round_up(std::max<std::int64_t>(1, line_.seqlen_kv), line_.page_size);
    const std::int64_t wanted = line_.batch * line_.table_pages();
    line_.pages = sizes_.chance(0.3) ? sizes_.integer(1, wanted) : wanted + sizes_.integer(0, 3);
  }

  std::int64_t positions_q() const { return line_.seqlen_q + line_.attention.q_offset; }
  std::int64_t positions_kv() const { return line_.seqlen_kv + line_.attention.kv_offset; }
  std::int64_t positions() const { return std::max(positions_q(), positions_kv()); }

  Param add_param(const std::string& name, std::vector<std::int64_t> shape, Type type, ParamFill fill = {}) {
    static constexpr std::array<DType, 6> reals{DType::f32, DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
    static constexpr std::array<DType, 5> integers{DType::i32, DType::i32, DType::i64, DType::i16, DType::u8};
    ParamLine param{.param = Param(name, std::move(shape), type), .dtype = DType::f32, .fill = std::move(fill)};
    const bool f64 = line_.dtype == DType::f64;
    param.dtype = type == Type::boolean   ? DType::boolean
                  : type == Type::integer ? pick(random_, integers)
                  : f64                   ? DType::f64
                                          : pick(random_, reals);
    if (type == Type::real && line_.pass == Pass::backward && random_.chance(0.8)) {
      param.grad = true;
      param.grad_dtype = random_.chance(0.7) ? (f64 ? DType::f64 : DType::f32) : random_.chance(0.5) ? DType::f64 : param.dtype;
    }
    line_.params.push_back(param);
    return param.param;
  }

  /// A constant of a program's text; few different ones if kernels are to be shared.
  std::int64_t constant(std::int64_t low, std::int64_t high) {
    return &random_ == &sizes_ ? random_.integer(low, high) : std::min(high, low + random_.integer(0, 15));
  }

  static double as_double(std::int64_t value) { return static_cast<double>(value); }

  Expr one_mask(int which) {
    using namespace symbols;
    const std::int64_t s = positions();
    const std::string suffix = std::to_string(line_.params.size());
    switch (which) {
      case 0:
        return causal();
      case 1:
        return causal_bottom_right();
      case 2:
        return window(constant(0, s));
      case 3:
        return causal() & window(constant(1, s));
      case 4:
        return prefix_lm(constant(0, s));
      case 5:
        return document(add_param("doc" + suffix, {s}, Type::integer, {"segments", {as_double(sizes_.integer(1, 5))}}));
      case 6:
        return padding(
            add_param("len" + suffix, {line_.batch}, Type::integer, {"integers", {0, as_double(std::min<std::int64_t>(s, 100))}}));
      case 7:
        return dilated(constant(1, s), random_.integer(1, 4));
      case 8:
        return add_param("keep" + suffix, {positions_q(), positions_kv()}, Type::boolean)(q_idx, kv_idx);
      case 9:
        return (q_idx + kv_idx * 3) % random_.integer(2, 5) != 0;
      case 10:
        return (kv_idx < positions_kv() - constant(0, positions_kv())) | (head == 0);
      default:
        return q_idx < constant(0, positions_q());  // rows without keys
    }
  }

  void mask() {
    const Expr first = one_mask(static_cast<int>(random_.integer(0, 11)));
    line_.attention.mask = first;
    if (!random_.chance(0.3)) return;
    const Expr second = one_mask(static_cast<int>(random_.integer(0, 11)));
    line_.attention.mask = random_.chance(0.7) ? first & second : random_.chance(0.5) ? first | second : first & !second;
  }

  Expr one_score(const Expr& s, int which) {
    using namespace symbols;
    const std::int64_t h = line_.heads_q, p = positions(), r = random_.integer(1, 8);
    const std::string n = std::to_string(line_.params.size());
    const auto real = [&](const char* name, std::vector<std::int64_t> shape) { return add_param(name + n, std::move(shape), Type::real); };
    switch (which) {
      case 0:
        return s + (kv_idx - q_idx) * exp2(to_real(head + 1) * (-8.0 / as_double(h)));
      case 1:
        return 5.0 * tanh(s / 5.0);
      case 2:
        return s + real("rel", {h, 2 * r + 1})(head, clamp(kv_idx - q_idx, -r, r) + r);
      case 3:
        return s + real("rel", {2 * r + 1})(clamp(kv_idx - q_idx, -r, r) + r);
      case 4:
        return s + real("bias", {positions_q(), positions_kv()})(q_idx, kv_idx);
      case 5:
        return s + real("bias", {h, positions_q(), positions_kv()})(head, q_idx, kv_idx);
      case 6:
        return s * sigmoid(real("gate", {h})(head));
      case 7:
        return s + real("col", {p})(kv_idx);
      case 8:
        return s * real("row", {p})(q_idx);
      case 9: {
        const Param b = real("sym", {p});
        return s + b(q_idx) * b(kv_idx);
      }
      case 10:
        return s + real("bh", {line_.batch, h})(batch, head) * to_real(kv_idx) * 0.01;
      case 11: {
        const Param ids = add_param("ids" + n, {p}, Type::integer, {"integers", {0, 6}});
        return s + real("table", {7, 7})(ids(q_idx), ids(kv_idx));
      }
      case 12: {
        const Param cap = add_param("cap" + n, {}, Type::real, {"uniform", {2, 4}});
        return cap() * tanh(s / cap());
      }
      case 13:
        return where((q_idx + kv_idx) % 2 == 0, s, s * 0.5 - 1.0);
      default:
        return s + sin(real("wave", {h})(head) * (q_idx - kv_idx));
    }
  }

  void score() {
    Expr s = one_score(symbols::score, static_cast<int>(random_.integer(0, 14)));
    if (random_.chance(0.3)) s = one_score(s, static_cast<int>(random_.integer(0, 14)));
    line_.attention.score_mod = s;
  }

  void sink() { line_.attention.sink = add_param("sink", {line_.heads_q}, Type::real); }

  void variation() {
    Attention& attention = line_.attention;
    static constexpr std::array<BackwardStrategy, 5> strategies{BackwardStrategy::automatic, BackwardStrategy::automatic,
                                                                BackwardStrategy::fused, BackwardStrategy::split,
                                                                BackwardStrategy::two_scan};
    if (random_.chance(0.2)) attention.scale = sizes_.uniform(0.05, 0.6);
    if (random_.chance(0.15)) {
      attention.dropout_p = sizes_.uniform(0.05, 0.6);
      line_.rng = {.seed = sizes_.bits(), .offset = sizes_.chance(0.5) ? sizes_.bits() : 0};
      line_.rng_in_memory = line_.rng.seed % 4 == 0;
    }
    if (random_.chance(0.2)) attention.determinism = Determinism::reproducible;
    if (sizes_.chance(0.1)) line_.fill = Fill::adversarial;
    if (line_.pass == Pass::forward) {
      line_.lse = random_.chance(0.8);
      return;
    }
    attention.backward = pick(random_, strategies);
    line_.dlse = random_.chance(0.2);
    if (!random_.chance(0.1)) return;
    line_.dq = random_.chance(0.5), line_.dk = random_.chance(0.5), line_.dv = random_.chance(0.5);
    const bool trains = std::any_of(line_.params.begin(), line_.params.end(), [](const ParamLine& param) { return param.grad; });
    if (!line_.dq && !line_.dk && !line_.dv && !trains) line_.dq = true;
  }

  base::Random& random_;  ///< for what kernels depend on
  base::Random& sizes_;   ///< for the rest
  const RandomLimits limits_;
  Line line_;
};

}  // namespace

Line random_line(base::Random& random, const RandomLimits& limits) { return Generator(random, random, limits)(); }
Line random_line(base::Random& program, base::Random& sizes, const RandomLimits& limits) { return Generator(program, sizes, limits)(); }

}  // namespace foveal::problem
