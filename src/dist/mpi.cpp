// Ranks that are processes of MPI. libmpi is loaded at run time, so the few constants of its binary interface stand here; it has none in
// common between implementations, hence only Open MPI's, and anything else is refused.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "base/check.h"
#include "dist/failure_text.h"
#include "dist/time_limit.h"
#include "foveal/dist.h"

namespace foveal::dist {
namespace {

/// Handles are pointers in Open MPI.
using Handle = void*;
constexpr int any_source = -1;
/// Tags: of messages, and of the words by which a rank says that it cannot go on.
constexpr int of_messages = 0, of_failures = 1;

struct Library {
  int (*Initialized)(int*);
  int (*Finalized)(int*);
  int (*Init_thread)(int*, char***, int, int*);
  int (*Finalize)();
  int (*Get_library_version)(char*, int*);
  Handle (*Comm_f2c)(int);
  int (*Comm_dup)(Handle, Handle*);
  int (*Comm_free)(Handle*);
  int (*Comm_rank)(Handle, int*);
  int (*Comm_size)(Handle, int*);
  int (*Comm_set_errhandler)(Handle, Handle);
  int (*Isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*Irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*Test)(Handle*, int*, void*);
  int (*Iprobe)(int, int, Handle, int*, void*);
  int (*Recv)(void*, int, Handle, int, int, Handle, void*);
  int (*Error_string)(int, char*, int*);
  Handle world, none, byte, errors_return;
  std::string unavailable;
};

Library load() {
  Library mpi{};
  // One that the process has already, of whatever implementation: a second one beside it would not know its ranks.
  void* image = dlsym(RTLD_DEFAULT, "MPI_Init") != nullptr ? dlopen(nullptr, RTLD_NOW) : nullptr;
  for (const char* name : {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"})
    if (image == nullptr) image = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  for (const char* name : {"libmpi.so.40", "libmpi.so"})
    if (image == nullptr) image = dlopen(name, RTLD_NOW | RTLD_GLOBAL);  // its plugins look for its symbols
  if (image == nullptr) {
    mpi.unavailable = "MPI: libmpi.so.40 was not found; install Open MPI (Debian: libopenmpi3 and openmpi-bin)";
    return mpi;
  }
  const auto find = [&](const char* name) {
    void* symbol = dlsym(image, name);
    if (symbol == nullptr && mpi.unavailable.empty()) mpi.unavailable = base::join("MPI: the library has no ", name, "; expected Open MPI");
    return symbol;
  };
  const auto function = [&](auto& pointer, const char* name) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(find(name));
  };
  function(mpi.Get_library_version, "MPI_Get_library_version");
  if (!mpi.unavailable.empty()) return mpi;
  char version[8192] = {};
  int length = 0;
  mpi.Get_library_version(version, &length);
  if (std::string(version).rfind("Open MPI", 0) != 0) {
    mpi.unavailable = base::join("MPI: the library is ", std::string(version).substr(0, 80), "; expected Open MPI");
    return mpi;
  }
  function(mpi.Initialized, "MPI_Initialized"), function(mpi.Finalized, "MPI_Finalized"), function(mpi.Init_thread, "MPI_Init_thread");
  function(mpi.Finalize, "MPI_Finalize"), function(mpi.Comm_f2c, "MPI_Comm_f2c"), function(mpi.Comm_dup, "MPI_Comm_dup");
  function(mpi.Comm_free, "MPI_Comm_free"), function(mpi.Comm_rank, "MPI_Comm_rank"), function(mpi.Comm_size, "MPI_Comm_size");
  function(mpi.Comm_set_errhandler, "MPI_Comm_set_errhandler"), function(mpi.Isend, "MPI_Isend"), function(mpi.Irecv, "MPI_Irecv");
  function(mpi.Iprobe, "MPI_Iprobe"), function(mpi.Recv, "MPI_Recv");
  function(mpi.Test, "MPI_Test"), function(mpi.Error_string, "MPI_Error_string");
  mpi.world = find("ompi_mpi_comm_world"), mpi.none = find("ompi_mpi_comm_null"), mpi.byte = find("ompi_mpi_byte"),
  mpi.errors_return = find("ompi_mpi_errors_return");
  return mpi;
}

const Library& library() {
  static const Library mpi = load();
  if (!mpi.unavailable.empty()) base::fail(ErrorCode::unsupported, mpi.unavailable);
  return mpi;
}

void check(int code, const char* what) {
  if (code == 0) return;
  char text[512] = {};
  int length = 0;
  library().Error_string(code, text, &length);
  base::fail(ErrorCode::communication, "MPI: ", what, ": ", static_cast<const char*>(text));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(Handle communicator, double time_limit) : mpi_(library()), time_limit_(time_limit) {
    keep_for_good(failure_);                                             // a message of it may never complete
    check(mpi_.Comm_dup(communicator, &communicator_), "MPI_Comm_dup");  // messages of our own
    check(mpi_.Comm_set_errhandler(communicator_, mpi_.errors_return), "MPI_Comm_set_errhandler");
    check(mpi_.Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(mpi_.Comm_size(communicator_, &size_), "MPI_Comm_size");
  }
  ~MpiTransport() override {
    int finalized = 0;
    mpi_.Finalized(&finalized);
    if (finalized == 0 && failure_->empty()) mpi_.Comm_free(&communicator_);  // after a failure it might wait for the others
  }

  int rank() const override { return rank_; }
  std::string name() const override { return "MPI"; }
  int size() const override { return size_; }

  std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    look_for_failures();
    std::vector<Request>& requests = under_way_[++last_];
    // Messages between two ranks keep their order, as they have one tag; long ones go in parts, for a count is an int.
    const auto each_part = [&](const Message& m, auto&& fn) {
      constexpr std::size_t most = std::size_t{1} << 30;
      for (std::size_t at = 0; at == 0 || at < m.bytes; at += most)
        fn(static_cast<char*>(m.data) + at, static_cast<int>(std::min(most, m.bytes - at)));
    };
    for (const Message& m : receives)
      each_part(m, [&](char* data, int bytes) {
        requests.push_back({nullptr, m.peer});
        check(mpi_.Irecv(data, bytes, mpi_.byte, m.peer, of_messages, communicator_, &requests.back().handle), "MPI_Irecv");
      });
    for (const Message& m : sends)
      each_part(m, [&](char* data, int bytes) {
        requests.push_back({nullptr, m.peer});
        check(mpi_.Isend(data, bytes, mpi_.byte, m.peer, of_messages, communicator_, &requests.back().handle), "MPI_Isend");
      });
    return last_;
  }

  void wait(std::uint64_t ticket) override {
    const auto found = under_way_.find(ticket);
    if (found == under_way_.end()) return;
    const auto begin = std::chrono::steady_clock::now();
    for (Request& request : found->second)
      for (int done = 0, tries = 0; done == 0; ++tries) {
        check(mpi_.Test(&request.handle, &done, nullptr), "MPI_Test");  // nullptr: no status is wanted
        if (done != 0) break;
        if (tries > 100) std::this_thread::yield();
        if (tries % 64 != 63) continue;
        look_for_failures();
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > time_limit_) {
          failure_->set("rank %d waited %g s for rank %d", rank_, time_limit_, request.peer);
          tell_others();
          look_for_failures();
        }
      }
    under_way_.erase(found);
  }

  void all_gather(const void* mine, std::size_t bytes, void* all) override { all_gather_by_messages(*this, mine, bytes, all); }

  void fail(const std::string& why) noexcept override {
    if (!failure_->empty()) return;  // all ranks know it
    failure_->set("rank %d failed: %s", rank_, why.c_str());
    tell_others();
  }

 private:
  void tell_others() noexcept {
    Handle request = nullptr;  // never waited for
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_)
        mpi_.Isend(failure_->data(), static_cast<int>(FailureText::bytes), mpi_.byte, peer, of_failures, communicator_, &request);
  }

  /// Throws when some rank has failed.
  void look_for_failures() {
    int found = 0;
    if (failure_->empty()) check(mpi_.Iprobe(any_source, of_failures, communicator_, &found, nullptr), "MPI_Iprobe");
    if (found != 0) {
      std::array<char, FailureText::bytes> word{};
      check(mpi_.Recv(word.data(), static_cast<int>(word.size()), mpi_.byte, any_source, of_failures, communicator_, nullptr), "MPI_Recv");
      failure_->set("%s", word.data());
    }
    if (!failure_->empty()) base::fail(ErrorCode::communication, "context parallelism: ", failure_->data());
  }

  struct Request {
    Handle handle;
    int peer;
  };
  const Library& mpi_;
  double time_limit_;
  Handle communicator_ = nullptr;
  int rank_ = 0, size_ = 1;
  const std::shared_ptr<FailureText> failure_ = std::make_shared<FailureText>();  ///< of some rank, itself or another
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::vector<Request>> under_way_;
};

}  // namespace

std::shared_ptr<Transport> mpi_ranks(int fortran_communicator, double time_limit) {
  check_time_limit("mpi_ranks", time_limit);
  const Library& mpi = library();
  int initialized = 0;
  mpi.Initialized(&initialized);
  FOVEAL_CHECK(initialized != 0, "mpi_ranks: MPI has not been initialised; expected MPI_Init before, or use mpi_world()");
  auto* const communicator = mpi.Comm_f2c(fortran_communicator);  // anything else with none would end the process
  FOVEAL_CHECK(communicator != nullptr && communicator != mpi.none, "mpi_ranks: ", fortran_communicator,
               " is the handle of no communicator; expected what MPI_Comm_c2f() gives");
  return std::make_shared<MpiTransport>(communicator, time_limit);
}

std::shared_ptr<Transport> mpi_world(double time_limit) {
  check_time_limit("mpi_world", time_limit);
  const Library& mpi = library();
  int initialized = 0;
  mpi.Initialized(&initialized);
  if (initialized == 0) {
    constexpr int thread_serialized = 2;
    int provided = 0;
    check(mpi.Init_thread(nullptr, nullptr, thread_serialized, &provided), "MPI_Init_thread");
    std::atexit([] {
      int finalized = 0;
      library().Finalized(&finalized);
      if (finalized == 0) library().Finalize();
    });
  }
  return std::make_shared<MpiTransport>(mpi.world, time_limit);
}

}  // namespace foveal::dist
