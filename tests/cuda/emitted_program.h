#pragma once
// An emitted program, compiled by the machine's C and C++ compilers with all warnings as errors, and loaded.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/record/emit_c.h"
#include "own_folder.h"

namespace foveal::test {

class EmittedProgram {
 public:
  /// `beside`: a C file that is linked in, or "".
  explicit EmittedProgram(std::vector<cuda::EmittedPass> passes, const std::string& beside = "") : passes_(std::move(passes)) {
    const cuda::EmittedC emitted = cuda::emit_c(passes_, "emitted");
    std::ofstream(folder_ / "emitted.h") << emitted.header;
    std::ofstream(folder_ / "emitted.c") << emitted.source;
    const std::string in = folder_.path().string() + "/", warnings = " -Wall -Wextra -Wpedantic -Werror ";
    const std::string command = "cc -std=c11 -O1" + warnings + "-shared -fPIC " + in + "emitted.c " + beside + " -o " + in + "emitted.so";
    const std::string as_cpp = "c++ -x c++ -std=c++17 -fsyntax-only" + warnings + in + "emitted.c";
    for (const std::string& one : {command, as_cpp})
      if (std::system(one.c_str()) != 0) throw std::runtime_error("does not compile: " + one);
    library_ = dlopen((in + "emitted.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  explicit EmittedProgram(const cuda::Recording& recording, const std::string& beside = "")
      : EmittedProgram(std::vector<cuda::EmittedPass>{{"pass", {recording}}}, beside) {}
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
  /// Addresses by the names of the recording's blocks. The shape is the pass's own but for `more_queries`.
  int run(const std::map<std::string, void*>& addresses, void* workspace, void* stream, int pass = 0, int more_queries = 0) const {
    const cuda::EmittedPass& one = passes_.at(static_cast<std::size_t>(pass));
    std::vector<std::int64_t> buffers;  // the struct: long longs, then pointers
    for (const auto& [size, value] : one.recordings[0].shape) buffers.push_back(value + (size == "seqlen_q" ? more_queries : 0));
    for (const cuda::Recording::Block& block : one.recordings[0].blocks)
      if (!block.name.empty() && block.name != "workspace") buffers.push_back(reinterpret_cast<std::int64_t>(addresses.at(block.name)));
    return find<int(const void*, const void*, void*, void*)>(("emitted_" + one.name).c_str())(loaded_, buffers.data(), workspace, stream);
  }

 private:
  std::vector<cuda::EmittedPass> passes_;
  OwnFolder folder_;
  void* library_ = nullptr;
  void* loaded_[256] = {};  ///< struct emitted: the device, modules, functions, tables
};

}  // namespace foveal::test
