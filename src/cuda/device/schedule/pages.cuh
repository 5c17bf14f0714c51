#pragma once
// Which keys of which sequence a page holds.
#include "base.cuh"
#include "pages_args.cuh"

namespace foveal::device {

/// Nobody has looked at the lengths: those that cannot be are clamped.
template <class Index>
FOVEAL_DEVICE int length_of(const PagesArgs& args, int sequence) {
  const Index length = static_cast<const Index*>(args.lengths)[sequence];
  return int(length < 0 ? Index(0) : length < args.seqlen_kv ? length : Index(args.seqlen_kv));
}

FOVEAL_DEVICE int page_of(const PagesArgs& args, int sequence, int index) {
  return args.table.data[sequence * args.table.batch + index * args.table.page];
}

}  // namespace foveal::device
