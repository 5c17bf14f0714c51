// Reductions over a tile: sums, the accumulation of parameter gradients, the maxima of lanes.
#pragma once
#include "cpu/kernels/tape_reads.h"

namespace foveal::cpu {
namespace {

class TapeSums : protected TapeReads {
 protected:
  using TapeReads::TapeReads;

  template <class Real>
  static constexpr int lanes_of = kVectorBytes / sizeof(Real);

  /// lane value out += sum of a over the rows of the strip
  template <class Real, int kLanes = lanes_of<Real>, class V = Vec<Real, kLanes>>
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
  template <class Real, int kLanes = lanes_of<Real>, class V = Vec<Real, kLanes>>
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

  /// diagonal value out += sums of a along its diagonals. A vector of running sums shifts up one lane with every row, so that each lane
  /// stays on its diagonal; finished sums leave at the top, into a second vector. The two are a contiguous piece of out.
  template <class Real, int kLanes = lanes_of<Real>, class V = Vec<Real, kLanes>>
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
  template <class Real>
  void sum_all(const TapeStep& step) {
    const Real* from = reinterpret_cast<const Real*>(ref<Real>(step.a).p);
    double sum = 0;
    for (int i = 0; i < call_.valid_lanes; ++i) sum += static_cast<double>(from[i]);
    fill<Real>(step, static_cast<Real>(sum));
  }

  /// accumulators[place] += a, element by element in the order of rows and lanes
  template <class Real>
  void accumulate(const TapeStep& step) {
    const TapePlace& place = call_.program->places[step.place];
    if (!call_.grads || !call_.grads->params[place.param].data) return;
    if (call_.grads->params[place.param].wide) return accumulate_into<Real, double>(step, place);
    return accumulate_into<Real, float>(step, place);
  }

  template <class Real, class Sum>
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
      for (; r < rows_ && parts.lanes_contiguous; ++r) add_run(sums + parts.row[r] + parts.lane[0], values(r, i), n);
      for (; r + 16 <= rows_ && parts.rows_contiguous(r, 16); r += 16) {
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

  template <class Real, class Sum>
  static void add_run(Sum* sums, const Real* values, int n) {
    for (int k = 0; k < n; ++k) sums[k] += static_cast<Sum>(values[k]);
  }

  template <class Real, int kLanes = lanes_of<Real>>
  void raise_lane_max() const {
    const TapeRef from = ref<Real>({Space::output, 0});
    char* max = static_cast<char*>(call_.lane_max) + call_.first_lane * sizeof(Real);
    int i = 0;
    for (; i + 4 * kLanes <= call_.lanes; i += 4 * kLanes)
      raise_max<Vec<Real, kLanes>, 4>(max + i * sizeof(Real), from.p + i * sizeof(Real), from.row);
    for (; i < call_.lanes; i += kLanes) raise_max<Vec<Real, kLanes>, 1>(max + i * sizeof(Real), from.p + i * sizeof(Real), from.row);
  }

  /// Of N vectors of lanes, in four chains: one waits for each maximum.
  template <class V, int N>
  void raise_max(char* max, const char* p, std::ptrdiff_t row) const {
    constexpr int chains = 4 / N;
    V high[chains][N];
    for (int c = 0; c < chains; ++c)
      for (int k = 0; k < N; ++k) high[c][k] = load<V>(max + k * sizeof(V));
    int r = 0;
    for (; r + chains <= rows_; r += chains)
      for (int c = 0; c < chains; ++c, p += row)
        for (int k = 0; k < N; ++k) high[c][k] = larger(high[c][k], load<V>(p + k * sizeof(V)));
    for (; r < rows_; ++r, p += row)
      for (int k = 0; k < N; ++k) high[0][k] = larger(high[0][k], load<V>(p + k * sizeof(V)));
    for (int k = 0; k < N; ++k) {
      for (int c = 1; c < chains; ++c) high[0][k] = larger(high[0][k], high[c][k]);
      store(max + k * sizeof(V), high[0][k]);
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
