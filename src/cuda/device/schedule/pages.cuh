#pragma once
// Block-table lookups.
#include "base.cuh"
#include "pages_args.cuh"

namespace foveal::device {

/// Lengths are not validated on the host: out-of-range ones are clamped.
template <class Index>
FOVEAL_DEVICE int length_of(const PagesArgs& args, int sequence) {
  const Index length = static_cast<const Index*>(args.lengths)[sequence];
  return int(length < 0 ? Index(0) : length < args.seqlen_kv ? length : Index(args.seqlen_kv));
}

FOVEAL_DEVICE int page_of(const PagesArgs& args, int sequence, int index) {
  return args.table.data[sequence * args.table.batch + index * args.table.page];
}

}  // namespace foveal::device
