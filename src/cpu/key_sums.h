#pragma once
// Row-major accumulators of dk and dv.
#include <algorithm>

#include "cpu/setup.h"

namespace foveal::cpu {

/// Null where a gradient is not wanted.
template <class Real>
struct KeySums {
  Real *dk = nullptr, *dv = nullptr;
};

template <class Real>
class KeyRowSums {
 public:
  explicit KeyRowSums(const Setup<Real>& setup)
      : s_(setup), dk_(setup.problem.dk.present ? padded_dim(setup.dim) : 0), dv_(setup.problem.dv.present ? padded_dim(setup.dim_v) : 0) {}

  Layout<KeySums<Real>> layout(std::int64_t rows) const {
    Layout<KeySums<Real>> layout;
    layout.array(&KeySums<Real>::dk, static_cast<std::size_t>(rows * dk_));
    layout.array(&KeySums<Real>::dv, static_cast<std::size_t>(rows * dv_));
    return layout;
  }
  std::size_t bytes(std::int64_t rows) const { return static_cast<std::size_t>(rows * (dk_ + dv_)) * sizeof(Real); }

  /// Rows of all heads; each sequence has a spare block, because ranges are rounded up.
  std::int64_t rows() const { return s_.problem.heads_kv * rows_of_head(); }
  std::int64_t row(const Sequence& sequence, std::int32_t kv_head) const {
    const std::int64_t token = s_.problem.ragged_kv() ? sequence.kv_begin : sequence.index * s_.problem.seqlen_kv;
    return kv_head * rows_of_head() + token + std::int64_t{sequence.index} * s_.ops.block_kv;
  }

  KeySums<Real> at(const KeySums<Real>& sums, std::int64_t row) const {
    return {dk_ ? sums.dk + row * dk_ : nullptr, dv_ ? sums.dv + row * dv_ : nullptr};
  }
  void clear(const KeySums<Real>& sums, std::int64_t keys) const {
    std::fill_n(sums.dk, keys * dk_, Real(0));
    std::fill_n(sums.dv, keys * dv_, Real(0));
  }
  /// Adds `keys` rows of each share into the first, in order; shares are `distance` rows apart.
  void add(const KeySums<Real>& sums, std::int64_t keys, std::int64_t shares, std::int64_t distance) const {
    const auto add = [&](Real* sum, std::int64_t ld) {
      for (std::int64_t share = 1; share < shares; ++share) {
        const Real* part = sum + share * distance * ld;
        for (std::int64_t i = 0; i < keys * ld; ++i) sum[i] += part[i];
      }
    };
    add(sums.dk, dk_), add(sums.dv, dv_);
  }
  /// Writes keys [key, key + keys) of a sequence.
  template <class Call>
  void write(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int64_t key, std::int64_t keys,
             const KeySums<Real>& sums) const {
    const std::int64_t token = sequence.kv_begin + key;
    const auto count = static_cast<int>(keys);
    if (dk_)
      s_.ops.write_keys(sums.dk, count, s_.dim, static_cast<Real>(s_.problem.scale), call.dk.keys_out(sequence.batch, token, kv_head));
    if (dv_) s_.ops.write_keys(sums.dv, count, s_.dim_v, Real(1), call.dv.keys_out(sequence.batch, token, kv_head));
  }

 private:
  std::int64_t rows_of_head() const { return s_.problem.total_kv + s_.problem.batch * s_.ops.block_kv; }

  const Setup<Real>& s_;
  const std::int64_t dk_, dv_;
};

}  // namespace foveal::cpu
