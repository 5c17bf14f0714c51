#include <cstring>

#include "base/check.h"
#include "foveal/dist.h"

namespace foveal::dist {

std::uint64_t Transport::start_on(Stream, const std::vector<Message>&, const std::vector<Message>&) {
  base::fail(ErrorCode::unsupported, "transport: it does not carry device memory");
}
void Transport::wait_on(Stream, std::uint64_t) { base::fail(ErrorCode::unsupported, "transport: it does not carry device memory"); }

void all_gather_by_messages(Transport& transport, const void* mine, std::size_t bytes, void* all) {
  std::vector<Message> sends, receives;
  std::vector<std::byte> copy(static_cast<const std::byte*>(mine), static_cast<const std::byte*>(mine) + bytes);
  for (int peer = 0; peer < transport.size(); ++peer) {
    std::byte* place = static_cast<std::byte*>(all) + static_cast<std::size_t>(peer) * bytes;
    if (peer == transport.rank()) {
      std::memcpy(place, copy.data(), bytes);
    } else {
      sends.push_back({peer, copy.data(), bytes});
      receives.push_back({peer, place, bytes});
    }
  }
  transport.wait(transport.start(sends, receives));
}

}  // namespace foveal::dist
