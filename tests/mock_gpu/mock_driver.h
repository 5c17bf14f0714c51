#pragma once
// What tests ask of the driver that stands in for the machine's, beside the driver's own functions.
#include <cstddef>
#include <map>
#include <string>

#include "cuda/jit/driver.h"

namespace foveal::mock {

/// Called for each launch, unless it is null; `argument` is the kernel's struct.
using OnLaunch = void (*)(const cuda::driver::LaunchConfig& config, const void* argument, std::size_t bytes);
void call_for_launches(OnLaunch call);

/// Called within each compilation, on its thread, unless it is null.
using OnCompilation = void (*)();
void call_for_compilations(OnCompilation call);

/// How long a failure lasts: one call; this entry point's calls from then on; all calls of the driver, as after a fault of a kernel.
enum class Lasts { once, on, for_all };
/// The nth next call of this name, of the driver or of the compiler, fails with this code.
void fail(const char* name, long nth, int code, Lasts lasts = Lasts::once);
/// Nothing fails any more.
void work();

/// Calls since the last time, by name.
std::map<std::string, long> count_calls();

struct State {
  long libraries = 0, allocations = 0, launches = 0;
  std::size_t bytes = 0;
};
State device();
long compiler_programs();  ///< of the compiler, that were not destroyed yet

/// From begin to end every stream is captured into the graph.
void* begin_capture();
void end_capture();
void destroy_graph(void* graph);

/// For the functions of the driver and of the compiler: counts the call, and gives its result: 0, or what was asked for.
int outcome(const char* name);
void count_compiler_program(int change);
void in_compilation();

}  // namespace foveal::mock
