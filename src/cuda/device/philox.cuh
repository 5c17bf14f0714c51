#pragma once
// Dropout bits: src/base/philox.h on the device. Tests compare the bits.
#include "args.cuh"
#include "base.cuh"

namespace foveal::device {

struct PhiloxWords {
  u32 word[4];
};

FOVEAL_DEVICE PhiloxWords philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 key0, u32 key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64(0xD2511F53u) * c0;
    const u64 p1 = u64(0xCD9E8D57u) * c2;
    const u32 n0 = u32(p1 >> 32) ^ c1 ^ key0;
    const u32 n2 = u32(p0 >> 32) ^ c3 ^ key1;
    c0 = n0, c1 = u32(p1), c2 = n2, c3 = u32(p0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Is a pair kept? row = batch * heads_q + head; q, kv: global positions.
class DropoutRow {
 public:
  FOVEAL_DEVICE DropoutRow(const DropoutArgs& args, u32 row) : threshold_(args.threshold), row_(row) {
    const u64 seed = args.state ? args.state[0] : args.seed, offset = args.state ? args.state[1] : args.offset;
    offset_ = u32(offset), key0_ = u32(seed), key1_ = u32(seed >> 32) ^ u32(offset >> 32);
  }

  FOVEAL_DEVICE bool keep(u32 q, u32 kv) const {
    const PhiloxWords words = philox(kv / 4, q, row_, offset_, key0_, key1_);
    const u32 low = kv & 1 ? words.word[1] : words.word[0];
    const u32 high = kv & 1 ? words.word[3] : words.word[2];
    return (kv & 2 ? high : low) >= threshold_;
  }
  /// Pairs (q, kv) and (q, kv + 1).
  FOVEAL_DEVICE void keep_two(u32 q, u32 kv, bool& first, bool& second) const {
    if (kv & 1) {
      first = keep(q, kv);
      second = keep(q, kv + 1);
      return;
    }
    const PhiloxWords words = philox(kv / 4, q, row_, offset_, key0_, key1_);
    first = (kv & 2 ? words.word[2] : words.word[0]) >= threshold_;
    second = (kv & 2 ? words.word[3] : words.word[1]) >= threshold_;
  }

 private:
  u32 threshold_, row_, offset_, key0_, key1_;
};

}  // namespace foveal::device
