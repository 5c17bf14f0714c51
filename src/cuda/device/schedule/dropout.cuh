#pragma once
// Philox4x32-10 of the global position: the same bits as base/philox.h.
#include "abi/sm90.h"
#include "ptx/basic.cuh"

/// Words of the pairs (row, q, 4 group .. 4 group + 3); row: batch * heads_q + head.
FOVEAL_DEVICE uint4 dropout_words(const DropoutArgs& args, u32 group, u32 q, u32 row) {
  uint4 c = make_uint4(group, q, row, args.offset_low);
  u32 key0 = args.seed_low, key1 = args.seed_high;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const u32 high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}
