// Which engine carries the messages of ranks with a GPU each.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "dist/mailbox.h"
#include "foveal/dist.h"

namespace foveal::dist {

std::shared_ptr<Transport> gpu_ranks(Transport& control, Device device, const NcclOptions& options) {
  using Id = std::array<char, 256>;
  Id mine{};
  const std::string id = peer_id();
  std::memcpy(mine.data(), id.data(), std::min(id.size(), mine.size() - 1));
  const auto ranks = static_cast<std::size_t>(control.size());
  std::vector<Id> ids(ranks);
  control.all_gather(mine.data(), mine.size(), ids.data());
  const char reached = ranks <= Mailbox::most_ranks && peer_reachable(ids.front().data()) ? 1 : 0;
  std::vector<char> all_reached(ranks);
  control.all_gather(&reached, 1, all_reached.data());
  if (std::find(all_reached.begin(), all_reached.end(), 0) == all_reached.end()) {
    try {
      return peer_ranks(ids.front().data(), control.rank(), control.size(), device, {options.time_limit});
    } catch (const Error& error) {  // on all ranks
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return nccl_ranks(control, device, options);
}

}  // namespace foveal::dist
