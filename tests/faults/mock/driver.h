#pragma once
// What a test asks of the driver and the compiler that stand in for the machine's.
#include <cstddef>
#include <map>
#include <string>

namespace mock {

/// The nth next call of this name fails with this code; for good: all calls do from then on, as after a fault of a kernel.
void fail(const char* name, long nth, int code, bool for_good = false);
/// Nothing fails any more.
void work();

/// Calls since the last time, by name.
std::map<std::string, long> count_calls();

struct State {
  long libraries = 0, allocations = 0, launches = 0, compiler_programs = 0;
  std::size_t bytes = 0;
  bool context_is_lost = false;
  void* graph = nullptr;  ///< that every stream is captured into
};
State device();

void* begin_capture();
void end_capture();
void destroy_graph(void* graph);

}  // namespace mock
