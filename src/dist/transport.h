#pragma once
// What engines share.
#include "foveal/dist.h"

namespace foveal::dist {

/// all_gather as one message to and from every other rank.
void all_gather_by_messages(Transport& transport, const void* mine, std::size_t bytes, void* all);

}  // namespace foveal::dist
