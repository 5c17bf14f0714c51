#pragma once
// An emitted program, compiled by the machine's C compiler with all warnings as errors, and loaded.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/emit_c.h"
#include "own_folder.h"

namespace foveal::test {

class EmittedProgram {
 public:
  /// `beside`: a C file that is linked in, or "".
  explicit EmittedProgram(const cuda::Recording& recording, const std::string& beside = "") : recording_(recording) {
    const cuda::EmittedC emitted = cuda::emit_c(recording, "emitted");
    std::ofstream(folder_ / "emitted.h") << emitted.header;
    std::ofstream(folder_ / "emitted.c") << emitted.source;
    const std::string in = folder_.path().string() + "/";
    const std::string command =
        "cc -std=c11 -O1 -Wall -Wextra -Wpedantic -Werror -shared -fPIC " + in + "emitted.c " + beside + " -o " + in + "emitted.so";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("does not compile: " + command);
    library_ = dlopen((in + "emitted.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  ~EmittedProgram() {
    if (library_ != nullptr) dlclose(library_);
  }
  EmittedProgram(const EmittedProgram&) = delete;
  EmittedProgram& operator=(const EmittedProgram&) = delete;

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  int load() { return find<int(void*)>("emitted_load")(loaded_); }
  int unload() { return find<int(void*)>("emitted_unload")(loaded_); }
  /// Addresses by the names of the recording's blocks.
  int run(const std::map<std::string, void*>& addresses, void* workspace, void* stream) const {
    std::vector<void*> buffers;
    for (const cuda::Recording::Block& block : recording_.blocks)
      if (!block.name.empty() && block.name != "workspace") buffers.push_back(addresses.at(block.name));
    return find<int(const void*, const void*, void*, void*)>("emitted_run")(loaded_, buffers.data(), workspace, stream);
  }

 private:
  cuda::Recording recording_;
  OwnFolder folder_;
  void* library_ = nullptr;
  void* loaded_[64] = {};  ///< struct emitted: modules, functions, tables
};

}  // namespace foveal::test
