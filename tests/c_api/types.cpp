// What crosses the border of the shared library by its type: errors of either side and a transport of the caller's.
#include <foveal/dist.h>
#include <foveal/foveal.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Mine : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A transport of one rank, whose first message is an error of the caller's.
class Alone : public foveal::dist::Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::uint64_t start(const std::vector<foveal::dist::Message>&, const std::vector<foveal::dist::Message>&) override {
    throw Mine("start");
  }
  void wait(std::uint64_t) override {}
  void all_gather(const void*, std::size_t, void*) override { throw Mine("all_gather"); }
  void fail(const std::string&) noexcept override {}
};

template <class Thrown>
bool throws(const char* what, const auto& fn) {
  try {
    fn();
  } catch (const Thrown&) {
    return true;
  } catch (...) {
  }
  std::printf("%s: not caught by its type\n", what);
  return false;
}

}  // namespace

int main() {
  const std::shared_ptr<foveal::dist::Transport> alone = std::make_shared<Alone>();
  const auto wrong = [] { foveal::parse("score +"); };
  bool right = throws<foveal::Error>("foveal::Error", wrong);
  right &= throws<std::runtime_error>("its base", wrong);
  right &= throws<Mine>("the caller's", [&] {
    foveal::dist::ContextAttention(
        alone, {}, {.batch = 1, .heads_q = 1, .heads_kv = 1, .seqlen_q = 256, .seqlen_kv = 256, .head_dim = 8, .head_dim_v = 8});
  });
  right &= dynamic_cast<const Alone*>(alone.get()) != nullptr;
  return right ? 0 : 1;
}
