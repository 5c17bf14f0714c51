// Ranks that copy to each other's memory, as threads that share the mock's device; and the mailbox that they find each other by, between processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/parallel.h"
#include "cuda/device/sm90_args.cuh"
#include "cuda/jit/disk_cache.h"
#include "dist/agreement.h"
#include "dist/mailbox.h"
#include "dist/ranks.h"
#include "foveal/dist.h"
#include "mock_driver.h"
#include "problem/line.h"

namespace foveal::dist {
namespace {

constexpr Device gpu{DeviceKind::cuda, 0};

/// fn(transport) on a thread for each rank; what each threw, or "".
template <class Fn>
std::vector<std::string> on_ranks(int ranks, Fn&& fn, double time_limit = 20) {
  const std::string id = peer_id();
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Transport> transport = peer_ranks(id, rank, ranks, gpu, {.time_limit = time_limit});
        fn(*transport);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = std::string(to_string(error.code())) + ": " + error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_no(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Calls its ranks' transport, as if each rank had a GPU to itself; fn before each message of device memory.
class Watched : public Transport {
 public:
  Watched(std::shared_ptr<Transport> transport, std::function<void()> fn) : to_(std::move(transport)), fn_(std::move(fn)) {}
  int rank() const override { return to_->rank(); }
  int size() const override { return to_->size(); }
  std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    return to_->start(sends, receives);
  }
  void wait(std::uint64_t ticket) override { to_->wait(ticket); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { to_->all_gather(mine, bytes, all); }
  bool carries_device_memory() const override { return true; }
  void* allocate(std::size_t bytes) override { return to_->allocate(bytes); }
  void release(void* memory) noexcept override { to_->release(memory); }
  std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    fn_();
    return to_->start_on(stream, sends, receives);
  }
  void wait_on(Stream stream, std::uint64_t ticket) override { to_->wait_on(stream, ticket); }
  void fail(const std::string& why) noexcept override { to_->fail(why); }

 private:
  std::shared_ptr<Transport> to_;
  std::function<void()> fn_;
};

/// Keeps what its start_on() was asked to receive, and its tickets.
class Recorded final : public Watched {
 public:
  explicit Recorded(std::shared_ptr<Transport> transport) : Watched(std::move(transport), [] {}) {}
  std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    tickets.push_back(Watched::start_on(stream, sends, receives));
    if (!receives.empty()) received.push_back(receives);
    return tickets.back();
  }
  std::vector<std::uint64_t> tickets;
  std::vector<std::vector<Message>> received;
};

unsigned char byte_of(int from, int to, int round, std::size_t at) {
  return static_cast<unsigned char>(from * 31 + to * 7 + round * 3 + static_cast<int>(at));
}

TEST(Peers, MessagesArriveWhereReceiversSay) {
  for (const int ranks : {1, 2, 3, 5})
    expect_no(on_ranks(ranks, [&](Transport& transport) {
      const int me = transport.rank();
      EXPECT_TRUE(transport.carries_device_memory());
      EXPECT_EQ(transport.multiprocessors(), 0);
      EXPECT_EQ(transport.name(), "peer copies");
      std::vector<std::vector<unsigned char>> sources(static_cast<std::size_t>(ranks));
      std::map<int, unsigned char*> inboxes;
      std::mt19937 random(5);  // the same numbers on every rank
      for (int round = 0; round < 200; ++round) {
        std::vector<Message> sends, receives;
        std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks * ranks));
        for (std::size_t& size : sizes) size = random() % 5 == 0 ? 0 : random() % 3000;
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == me) continue;
          const std::size_t out = sizes[static_cast<std::size_t>(me * ranks + peer)],
                            in = sizes[static_cast<std::size_t>(peer * ranks + me)];
          auto& source = sources[static_cast<std::size_t>(peer)];
          source.resize(out);
          for (std::size_t i = 0; i < out; ++i) source[i] = byte_of(me, peer, round, i);
          if (round % 50 == 0) {  // buffers grow, are given back, and come again
            if (inboxes[peer] != nullptr) transport.release(inboxes[peer]);
            inboxes[peer] = static_cast<unsigned char*>(transport.allocate(3000));
          }
          std::memset(inboxes[peer], 0xee, 3000);
          // Two messages for each pair: their order counts.
          sends.push_back({peer, source.data(), out / 2}), sends.push_back({peer, source.data() + out / 2, out - out / 2});
          receives.push_back({peer, inboxes[peer], in / 2}), receives.push_back({peer, inboxes[peer] + in / 2, in - in / 2});
        }
        transport.wait_on({}, transport.start_on({}, sends, receives));
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == me) continue;
          const std::size_t in = sizes[static_cast<std::size_t>(peer * ranks + me)];
          for (std::size_t i = 0; i < in; ++i) ASSERT_EQ(inboxes[peer][i], byte_of(peer, me, round, i)) << round << ' ' << peer;
        }
      }
      for (const auto& [peer, memory] : inboxes) transport.release(memory);
    }));
}

TEST(Peers, ReceivesMayBeStartedLongBeforeTheirSends) {
  expect_no(on_ranks(2, [&](Transport& transport) {
    const int me = transport.rank(), peer = 1 - me;
    auto* inbox = static_cast<int*>(transport.allocate(64));
    const std::uint64_t receives = transport.start_on({}, {}, {{peer, inbox, sizeof(int)}});
    int word = 40 + me, other = 50 + me;
    auto* second = static_cast<int*>(transport.allocate(64));
    const std::uint64_t early = transport.start_on({}, {{peer, &word, sizeof(int)}}, {});
    const std::uint64_t both = transport.start_on({}, {{peer, &other, sizeof(int)}}, {{peer, second, sizeof(int)}});
    for (const std::uint64_t ticket : {receives, early, both}) transport.wait_on({}, ticket);
    EXPECT_EQ(*inbox, 40 + peer);
    EXPECT_EQ(*second, 50 + peer);
    EXPECT_FALSE(transport.arrival_word(both, peer)) << "ranks share a GPU: a kernel that waits could wait for ever";
  }));
}

/// Each way more than there are places for in shared memory, in one call, or received long before they are sent.
TEST(Peers, AnyNumberOfMessagesMayBeUnderWay) {
  for (const int ranks : {2, 3})
    for (const int count : {65, 256, 257, 1000})
      for (const bool in_one_call : {true, false})
        expect_no(on_ranks(ranks, [&](Transport& transport) {
          const int me = transport.rank();
          const auto value = [&](int from, int to, int i) { return (from * ranks + to) * 10000 + i; };
          const std::size_t words = static_cast<std::size_t>(ranks * count);
          auto* const inbox = static_cast<int*>(transport.allocate(words * sizeof(int)));
          std::vector<int> outbox(words);
          std::vector<Message> sends, receives;
          for (int i = 0; i < count; ++i)
            for (int peer = 0; peer < ranks; ++peer) {
              const int at = peer * count + i;
              outbox[static_cast<std::size_t>(at)] = value(me, peer, i), inbox[at] = -1;
              if (peer == me) continue;
              sends.push_back({peer, &outbox[static_cast<std::size_t>(at)], sizeof(int)}),
                  receives.push_back({peer, inbox + at, sizeof(int)});
            }
          std::vector<std::uint64_t> tickets;
          if (in_one_call) {
            tickets = {transport.start_on({}, sends, receives)};
          } else {
            tickets = {transport.start_on({}, {}, receives), transport.start_on({}, sends, {})};
          }
          for (const std::uint64_t ticket : tickets) transport.wait_on({}, ticket);
          for (int peer = 0; peer < ranks; ++peer)
            for (int i = 0; i < count && peer != me; ++i) ASSERT_EQ(inbox[peer * count + i], value(peer, me, i)) << count << ' ' << i;
          transport.release(inbox);
        }));
}

/// A kernel that waits for messages may fill the queue of its GPU, so that its rank's host stops at a launch.
TEST(Peers, NothingIsLeftToPostWhenKernelsWait) {
  constexpr int count = 700;
  const std::string id = peer_id();
  std::vector<int> values(count, 7);
  std::atomic<bool> is_there = false;
  test::on_threads(2, [&](int me) {
    const auto transport = peer_ranks(id, me, 2, {DeviceKind::cuda, me}, {.time_limit = 20});
    auto* const inbox = static_cast<int*>(transport->allocate(count * sizeof(int)));
    std::vector<Message> sends, receives;
    for (int i = 0; i < count; ++i)
      sends.push_back({0, &values[static_cast<std::size_t>(i)], sizeof(int)}), receives.push_back({1, inbox + i, sizeof(int)});
    if (me == 1) return transport->wait_on({}, transport->start_on({}, sends, {}));
    const std::uint64_t ticket = transport->start_on({}, {}, receives);
    const std::optional<ArrivalWord> arrival = transport->arrival_word(ticket, 1);
    ASSERT_TRUE(arrival);
    const auto* word = reinterpret_cast<const std::atomic<std::uint32_t>*>(arrival->word);
    const auto begin = std::chrono::steady_clock::now();
    while (word->load() != arrival->value && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) std::this_thread::yield();
    is_there = word->load() == arrival->value;
    transport->wait_on({}, ticket);
  });
  EXPECT_TRUE(is_there) << "the sender waits for a rank that waits for it";
}

/// Documents whose halves are on different ranks have a message each.
TEST(Peers, PassesMaySendAnyNumberOfMessages) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  constexpr int documents = 200;
  std::string lengths = "96";
  for (int i = 1; i < documents; ++i) lengths += ",96";
  for (const int ranks : {2, 3}) {
    const problem::CaseData data(problem::parse_line("backward bf16 h1 d64 mask=\"causal()\" lengths=" + lengths));
    ContextOptions options;
    options.deal = "zigzag", options.unit = 16, options.head_groups = 1;
    std::atomic<std::size_t> most = 0;
    expect_no(on_ranks(ranks, [&](Transport& transport) {
      const auto recorded = std::make_shared<Recorded>(std::shared_ptr<Transport>(&transport, [](Transport*) {}));
      test::run_rank(recorded, data, options, {}, {}, gpu);
      for (const std::vector<Message>& messages : recorded->received) most = std::max<std::size_t>(most, messages.size());
    }));
    EXPECT_GT(most, static_cast<std::size_t>(documents)) << ranks;
  }
}

/// Counts what is allocated for its messages.
class Counted final : public Watched {
 public:
  explicit Counted(Transport& transport) : Watched(std::shared_ptr<Transport>(&transport, [](Transport*) {}), [] {}) {}
  void* allocate(std::size_t bytes) override { return ++allocations, Watched::allocate(bytes); }
  long allocations = 0;
};

/// Peers have few places for memory that others write to, of whole pages.
TEST(Peers, OnlyWhatIsReceivedNeedsMemoryOfMessages) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  const auto most_allocations = [](const std::string& line, const char* deal) {
    const problem::CaseData data(problem::parse_line(line));
    ContextOptions options;
    options.deal = deal, options.unit = 16, options.head_groups = 1;
    std::atomic<long> most = 0;
    expect_no(on_ranks(2, [&](Transport& transport) {
      const auto counted = std::make_shared<Counted>(transport);
      test::run_rank(counted, data, options, {}, {}, gpu);
      most = std::max<long>(most, counted->allocations);
    }));
    return most.load();
  };
  EXPECT_EQ(most_allocations("backward bf16 h1 d64 mask=\"causal()\" lengths=96,96,96,96", "pieces"), 0);
  std::string lengths = "96";
  for (int i = 1; i < 300; ++i) lengths += ",96";
  EXPECT_LT(most_allocations("backward bf16 h1 d64 mask=\"causal()\" lengths=" + lengths, "zigzag"), 20);
}

TEST(Peers, RanksThatLeaveAreReportedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = [](auto&& fn) {
    return on_ranks(2, [&](Transport& transport) {
      if (transport.rank() == 0) fn(transport);
    })[0];
  };
  char words[2] = {};
  EXPECT_NE(errors([&](Transport& t) {
              t.start_on({}, {{1, words, 1}}, {});
            }).find("rank 1 left before it received all"),
            std::string::npos);
  EXPECT_NE(errors([&](Transport& t) { t.all_gather(words, 1, words); }).find("rank 1 left before a gather"), std::string::npos);
  const std::string waits = errors([&](Transport& t) {
    t.wait_on({}, t.start_on({}, {}, {{1, t.allocate(8), 8}}));
    t.all_gather(words, 1, words);
  });
  EXPECT_NE(waits.find("rank 1 left before it sent all"), std::string::npos) << waits;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

/// Memory of a rank that left is another's soon: nothing is written there.
TEST(Peers, NothingIsWrittenToRanksThatLeft) {
  const auto error = [](bool rank_1_receives, auto&& fn) {
    std::atomic<bool> posted = false;
    return on_ranks(2, [&](Transport& transport) {
      char word[8] = {};
      if (transport.rank() == 1) {
        if (rank_1_receives) transport.start_on({}, {}, {{0, transport.allocate(8), 8}});
        posted = true;
        return;
      }
      while (!posted) std::this_thread::yield();
      for (int i = 0; i < 20; ++i) {  // sees what rank 1 gives back as it leaves, and lets go of it
        transport.release(transport.allocate(8));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      fn(transport, word);
    })[0];
  };
  const auto receives = [](Transport& t, char*) { t.start_on({}, {}, {{1, t.allocate(8), 8}}); };
  const auto sends = [](Transport& t, char* word) { t.start_on({}, {{1, word, 8}}, {}); };
  EXPECT_NE(error(false, receives).find("rank 1 left before it sent all messages"), std::string::npos);
  EXPECT_NE(error(false, sends).find("rank 1 left before it received all messages"), std::string::npos);
  EXPECT_NE(error(true, sends).find("rank 1 left or released their memory before it received all messages"), std::string::npos);
}

/// Rows in slices, beside whole messages of the same call.
TEST(Peers, MessagesMayComeInSlices) {
  constexpr std::size_t rows = 50, row_bytes = 24, bytes = rows * row_bytes;
  expect_no(on_ranks(3, [](Transport& transport) {
    const int me = transport.rank();
    std::vector<std::byte*> inboxes;
    for (int round = 0; round < 20; ++round)
      for (const int slices : {1, 2, 3, 4}) {
        std::vector<std::vector<unsigned char>> sources;
        std::vector<Message> sends, receives;
        for (int peer = 0; peer < 3; ++peer) {
          auto& source = sources.emplace_back(bytes + 10);
          for (std::size_t i = 0; i < source.size(); ++i) source[i] = byte_of(me, peer, round, i);
          if (round == 0 && slices == 1) inboxes.push_back(static_cast<std::byte*>(transport.allocate(bytes + 10)));
          std::memset(inboxes[static_cast<std::size_t>(peer)], 0xee, bytes + 10);
          if (peer == me) continue;
          sends.push_back({peer, source.data(), bytes, slices, row_bytes, 2}), sends.push_back({peer, source.data() + bytes, 10});
          std::byte* const inbox = inboxes[static_cast<std::size_t>(peer)];
          receives.push_back({peer, inbox, bytes, slices, row_bytes, 2}), receives.push_back({peer, inbox + bytes, 10});
        }
        transport.wait_on({}, transport.start_on({}, sends, receives));
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == me) continue;
          const auto* inbox = reinterpret_cast<unsigned char*>(inboxes[static_cast<std::size_t>(peer)]);
          for (std::size_t i = 0; i < bytes + 10; ++i)
            ASSERT_EQ(inbox[i], byte_of(peer, me, round, i)) << slices << ' ' << peer << ' ' << i;
        }
      }
    for (std::byte* inbox : inboxes) transport.release(inbox);
  }));
  expect_no(on_ranks(1, [](Transport& transport) {
    char word[8] = {};
    for (const Message& m : {Message{0, word, 8, 0, 4, 1},
                             {0, word, 8, 2, 0, 1},
                             {0, word, 8, 2, 3, 1},
                             {0, word, 8, 2, 4, 0},
                             {0, word, 8, 2, 4, 4},
                             {0, word, 8, 4, 4, 1},
                             {0, word, 8, 64, 4, 1}})
      EXPECT_THROW(transport.start_on({}, {m}, {}), Error) << m.slices << ' ' << m.row_bytes << ' ' << m.first_slice_bytes;
  }));
  const auto slices_differ = on_ranks(2, [](Transport& transport) {
    const int peer = 1 - transport.rank();
    char word[8] = {};
    void* inbox = transport.allocate(8);
    transport.wait_on({}, transport.start_on({}, {{peer, word, 8, 2, 4, 1}}, {{peer, inbox, 8, transport.rank() == 0 ? 3 : 2, 4, 1}}));
    transport.all_gather(word, 1, word);
  });
  EXPECT_NE(slices_differ[1].find("8 bytes in 3 slices; it has one of 8 in 2"), std::string::npos) << slices_differ[1];
}

TEST(Peers, GathersOfAnySize) {
  expect_no(on_ranks(3, [&](Transport& transport) {
    for (const std::size_t bytes : {0u, 1u, 4096u, 4097u, 20000u}) {
      std::vector<unsigned char> mine(bytes), all(3 * bytes);
      for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte_of(transport.rank(), 0, 0, i);
      transport.all_gather(mine.data(), bytes, all.data());
      for (int rank = 0; rank < 3; ++rank)
        for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(all[static_cast<std::size_t>(rank) * bytes + i], byte_of(rank, 0, 0, i));
    }
  }));
}

TEST(Peers, FailuresReachEveryRank) {
  const auto sizes_differ = on_ranks(2, [&](Transport& transport) {
    const int peer = 1 - transport.rank();
    char word[8] = {};
    void* inbox = transport.allocate(8);
    transport.wait_on({}, transport.start_on({}, {{peer, word, 4}}, {{peer, inbox, transport.rank() == 0 ? 4u : 8u}}));
    transport.all_gather(word, 1, word);
  });
  for (const std::string& error : sizes_differ) EXPECT_NE(error.find("communication"), std::string::npos) << error;
  EXPECT_NE(sizes_differ[0].find("waits for a message of 8 bytes"), std::string::npos) << sizes_differ[0];

  const auto one_fails = on_ranks(2, [&](Transport& transport) {
    if (transport.rank() == 1) return transport.fail("its memory ran out");
    char word = 0;
    void* inbox = transport.allocate(8);
    transport.start_on({}, {{1, &word, 1}}, {{1, inbox, 1}});
  });
  EXPECT_NE(one_fails[0].find("its memory ran out"), std::string::npos) << one_fails[0];

  const auto nobody_comes = on_ranks(
      2,
      [&](Transport& transport) {
        if (transport.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        char word = 0;
        transport.start_on({}, {{1, &word, 1}}, {});
      },
      0.3);
  EXPECT_NE(nobody_comes[0].find("waited 0.3 s"), std::string::npos) << nobody_comes[0];
}

TEST(Peers, WhatDoesNotWorkIsUnsupportedOnEveryRank) {
  for (const char* call : {"cuMemHostRegister_v2", "cuStreamWriteValue32_v2", "cuDeviceGetUuid_v2"}) {
    mock::fail(call, 1, 801, mock::Lasts::once);
    const auto errors = on_ranks(3, [](Transport&) {});
    mock::work();
    for (const std::string& error : errors)
      EXPECT_NE(error.find("unsupported: peer copies: rank"), std::string::npos) << call << ": " << error;
  }
  EXPECT_THROW(peer_ranks("elsewhere", 0, 2, gpu), Error);
  EXPECT_THROW(peer_ranks("/foveal-of another host", 0, 2, gpu), Error);
  EXPECT_FALSE(peer_reachable("/foveal-of another host"));
  EXPECT_TRUE(peer_reachable(peer_id()));
}

TEST(Peers, NothingIsLeftBehind) {
  expect_no(on_ranks(2, [](Transport&) {}));
  const auto before = mock::device();
  for (int i = 0; i < 5; ++i) {
    expect_no(on_ranks(3, [](Transport& transport) {
      for (int n = 0; n < 20; ++n) {
        void* memory = transport.allocate(1000);
        const int next = (transport.rank() + 1) % 3, last = (transport.rank() + 2) % 3;
        int word = n;
        transport.wait_on({}, transport.start_on({}, {{next, &word, sizeof word}}, {{last, memory, sizeof word}}));
        EXPECT_EQ(*static_cast<int*>(memory), n);
        transport.release(memory);
      }
    }));
    EXPECT_EQ(mock::device().allocations, before.allocations);
  }
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_EQ(file.path().filename().string().find("foveal-"), std::string::npos) << file.path();
}

/// A driver may load a kernel, or give memory back, when all that its GPU has to do is done: never, where that waits for a rank that waits for this one's kernels.
TEST(Peers, NothingIsLoadedOrAllocatedWhileAPassIsUnderWay) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  struct Case {
    int ranks;
    const char* text;
  };
  for (const auto& [ranks, text] :
       {Case{2, "backward bf16 h4:2 q1500 d128 mask=\"causal()\""}, Case{2, "backward f32 h2 q600 d32 mask=\"causal() & window(200)\""},
        Case{2, "backward bf16 h2 q900 d64 mask=\"causal()\" sink=s param=\"s: real[2] f32 normal(1) grad\" dlse"},
        Case{2, "backward f16 h2 q700 d64 score=\"score + row[q_idx]\" param=\"row: real[700] f32 normal(1) grad\""},
        Case{2, "backward bf16 h2 d64 lengths=1700,1,333,0,1250 mask=\"causal()\""},
        Case{4,
             "backward bf16 h4 q8192 d128 mask=\"causal()\" score=\"score + rel[clamp(q_idx - kv_idx, 0, 99)]\" param=\"rel: real[100] "
             "grad\""}})
    for (const int head_groups : {1, 2}) {
      const problem::CaseData data(problem::parse_line(text));
      std::mutex mutex;
      std::map<std::string, long> late;
      bool begun = false;
      const auto look = [&](bool ends) {  // at the first message of a pass, and at its end
        const std::lock_guard lock(mutex);
        if (begun == !ends) return;
        const auto calls = mock::count_calls();
        if (ends)
          for (const char* name :
               {"cuLibraryLoadData", "cuKernelGetFunction", "cuMemAlloc_v2", "cuMemFree_v2", "cuStreamCreateWithPriority"})
            if (const auto found = calls.find(name); found != calls.end() && found->second > 0) late[name] += found->second;
        begun = !ends;
      };
      std::barrier all(ranks);
      const auto end = [&](const ContextAttention&) {
        all.arrive_and_wait();
        look(true);
        all.arrive_and_wait();
      };
      ContextOptions options;
      options.unit = 128, options.head_groups = head_groups;
      expect_no(on_ranks(ranks, [&](Transport& transport) {
        const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
        test::run_rank(std::make_shared<Watched>(borrowed, [&] { look(false); }), data, options, end, end, gpu);
      }));
      for (const auto& [name, count] : late) ADD_FAILURE() << text << ": " << count << " calls of " << name << " in " << head_groups;
    }
}

struct Compilations {
  std::mutex mutex;
  std::condition_variable another;
  int begun = 0, at_once = 0, most_at_once = 0, alone = 0;
} compilations;

/// Waits for another compilation that runs beside this one; where none begins for a while, it was compiled alone.
void see_compilation() {
  std::unique_lock lock(compilations.mutex);
  const int mine = ++compilations.begun;
  compilations.most_at_once = std::max(compilations.most_at_once, ++compilations.at_once);
  compilations.another.notify_all();
  const bool beside =
      compilations.at_once > 1 || compilations.another.wait_for(lock, std::chrono::seconds(1), [&] { return compilations.begun > mine; });
  compilations.alone += !beside;
  --compilations.at_once;
}

/// A kernel takes seconds.
TEST(Peers, KernelsOfAllLaunchesOfBothPassesAreCompiledAtOnce) {
  if (base::available_threads() < 2) GTEST_SKIP() << "one thread compiles one kernel after the other";
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  int number = 0;  // in each score, so that its kernels are new
  const auto compiled_by = [&](const char* text) {
    const problem::CaseData data(problem::parse_line(base::join(text, " score=\"score * ", 1 + 0.125 * ++number, "\"")));
    ContextOptions options;
    options.unit = 128, options.deal = "zigzag", options.head_groups = 1;
    std::array<int, 2> after{};
    expect_no(on_ranks(2, [&](Transport& transport) {
      const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
      const auto alone = std::make_shared<Watched>(borrowed, [] {});
      const auto made = [](ContextAttention& attention) { attention.backward_follows(); };
      const auto count = [&](int pass) {
        return [&, pass](const ContextAttention&) {
          const std::lock_guard lock(compilations.mutex);
          after[static_cast<std::size_t>(pass)] = std::max(after[static_cast<std::size_t>(pass)], compilations.begun);
        };
      };
      test::run_rank(alone, data, options, count(0), count(1), gpu, {}, made);
    }));
    return after;
  };
  mock::call_for_compilations(see_compilation);
  for (const char* text :
       {"backward bf16 h2 q1500 d128 mask=\"causal()\"", "backward bf16 h2 d64 lengths=1700,1,333,0,1250 mask=\"causal()\"",
        "backward f32 h2 q600 d32 mask=\"causal() & window(200)\""}) {
    compilations.begun = compilations.most_at_once = compilations.alone = 0;
    const auto [forward, both] = compiled_by(text);
    EXPECT_GT(forward, 3) << text;
    EXPECT_EQ(both, forward) << text << ": a backward pass compiles what it was known to need";
    EXPECT_GE(compilations.most_at_once, 2) << text;
    EXPECT_LE(compilations.alone, 1) << text << ": kernels were compiled one after the other";
  }
  mock::call_for_compilations(nullptr);
}

/// Keys that are a part of a packed tensor are copied before they are sent, one block of memory for each rank: in one gather for all steps, too,
/// each finds the block of its size that the warm-up took.
TEST(Peers, KeysOfPackedTensorsTakeWhatTheWarmUpTook) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  constexpr int ranks = 4;
  constexpr std::int64_t seqlen = 4096, heads = 2, dim = 128;
  std::mutex mutex;
  bool begun = false;
  const auto begin = [&] {
    const std::lock_guard lock(mutex);
    if (!begun) mock::count_calls();
    begun = true;
  };
  std::barrier all(ranks);
  expect_no(on_ranks(ranks, [&](Transport& transport) {
    const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
    const WholeShapes shapes{.dtype = DType::bf16,
                             .heads_q = heads,
                             .heads_kv = heads,
                             .seqlen_q = seqlen,
                             .seqlen_kv = seqlen,
                             .head_dim = dim,
                             .head_dim_v = dim};
    ContextOptions options;
    options.deal = "zigzag", options.head_groups = 1, options.remote_steps = 2;
    ContextAttention attention(std::make_shared<Watched>(borrowed, begin), {.mask = causal()}, shapes, {}, options);
    const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
    std::vector<std::uint16_t> qkv(static_cast<std::size_t>(rows * 3 * heads * dim)), out(static_cast<std::size_t>(rows * heads * dim));
    const auto part = [&](std::int64_t of) {
      return TensorView(qkv.data() + of * heads * dim, DType::bf16, {1, rows, heads, dim},
                        {rows * 3 * heads * dim, 3 * heads * dim, dim, 1}, gpu);
    };
    attention.forward({.q = part(0), .k = part(1), .v = part(2)}, {.out = TensorView(out.data(), DType::bf16, {1, rows, heads, dim}, gpu)});
    all.arrive_and_wait();
  }));
  EXPECT_TRUE(begun);
  const auto calls = mock::count_calls();
  for (const char* name : {"cuMemAlloc_v2", "cuLibraryLoadData"}) EXPECT_EQ(calls.contains(name) ? calls.at(name) : 0, 0) << name;
}

/// A rank that is ahead need not wait until its receiver has done with the keys of the last pass.
TEST(Peers, KeysOfForwardPassesAreDoubleBuffered) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  expect_no(on_ranks(2, [](Transport& transport) {
    const auto recorded = std::make_shared<Recorded>(std::shared_ptr<Transport>(&transport, [](Transport*) {}));
    constexpr std::int64_t heads = 2, dim = 128;
    const WholeShapes shapes{
        .dtype = DType::bf16, .heads_q = heads, .heads_kv = heads, .seqlen_q = 2048, .seqlen_kv = 2048, .head_dim = dim, .head_dim_v = dim};
    ContextOptions options;
    options.deal = "zigzag", options.head_groups = 1;
    ContextAttention attention(recorded, {.mask = causal()}, shapes, {}, options);
    const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * heads * dim)), out(values.size());
    const TensorView in(values.data(), DType::bf16, {1, rows, heads, dim}, gpu);
    for (int pass = 0; pass < 4; ++pass)
      attention.forward({.q = in, .k = in, .v = in}, {.out = TensorView(out.data(), DType::bf16, {1, rows, heads, dim}, gpu)});
    ASSERT_EQ(recorded->received.size(), 4u);
    const auto place = [&](std::size_t pass, std::size_t message) { return recorded->received[pass].at(message).data; };
    for (std::size_t message = 0; message < recorded->received[0].size(); ++message) {
      EXPECT_NE(place(0, message), place(1, message));
      EXPECT_EQ(place(0, message), place(2, message));
      EXPECT_EQ(place(1, message), place(3, message));
    }
    for (std::size_t pass = 0; pass < 4; ++pass)
      for (const Message& m : recorded->received[pass]) EXPECT_EQ(m.free_since, pass == 0 ? 0 : recorded->tickets[pass - 1]);
  }));
}

/// Passes on one transport follow each other, so that layers with an attention each do not have memory each.
TEST(Peers, AttentionsOfATransportShareMemory) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  std::barrier all(2);
  expect_no(on_ranks(2, [&](Transport& transport) {
    const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
    constexpr std::int64_t heads = 2, dim = 128;
    const WholeShapes shapes{
        .dtype = DType::bf16, .heads_q = heads, .heads_kv = heads, .seqlen_q = 2048, .seqlen_kv = 2048, .head_dim = dim, .head_dim_v = dim};
    std::vector<ContextAttention> layers;
    long after_first = 0;
    for (int layer = 0; layer < 60; ++layer) {
      ContextAttention& attention = layers.emplace_back(borrowed, Attention{.mask = layer % 2 ? causal() : causal() & window(700)}, shapes,
                                                        std::vector<ParamBinding>{}, ContextOptions{.deal = "zigzag", .head_groups = 1});
      const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
      std::vector<std::vector<std::uint16_t>> memory(8, std::vector<std::uint16_t>(static_cast<std::size_t>(rows * heads * dim)));
      std::vector<float> statistics(static_cast<std::size_t>(rows * heads));
      const auto tensor = [&](std::size_t i) { return TensorView(memory[i].data(), DType::bf16, {1, rows, heads, dim}, gpu); };
      const TensorView lse(statistics.data(), DType::f32, {1, heads, rows}, gpu);
      attention.forward({.q = tensor(0), .k = tensor(1), .v = tensor(2)}, {.out = tensor(3), .lse = lse});
      attention.backward({.q = tensor(0), .k = tensor(1), .v = tensor(2), .out = tensor(3), .lse = lse, .dout = tensor(4)},
                         {.dq = tensor(5), .dk = tensor(6), .dv = tensor(7)});
      all.arrive_and_wait();
      if (layer == 3) after_first = mock::device().allocations;
      if (layer > 3) {
        EXPECT_EQ(mock::device().allocations, after_first) << layer;
      }
      all.arrive_and_wait();
    }
  }));
}

/// To read values of a GPU is to wait for it: once, unless all is to be checked.
TEST(Peers, ValuesOfParametersAreCompared) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  const Param bias("bias", {300, 2});
  const auto errors = [&](bool checked, int differs_in) {
    return on_ranks(2, [&](Transport& transport) {
      constexpr std::int64_t heads = 2, dim = 64;
      const WholeShapes shapes{
          .dtype = DType::bf16, .heads_q = heads, .heads_kv = heads, .seqlen_q = 512, .seqlen_kv = 512, .head_dim = dim, .head_dim_v = dim};
      std::vector<float> values(600, 0.5f);
      TensorView view(values.data(), DType::f32, {300, 2}, gpu);
      view.strides[0] = 1, view.strides[1] = 300;
      const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
      const Attention biased{.score_mod = symbols::score + bias(symbols::q_idx % 300, 1), .checked = checked};
      ContextAttention attention(borrowed, biased, shapes, {{bias, TensorView(values.data(), DType::f32, {300, 2})}});
      const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
      std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows * heads * dim)), results(memory.size());
      const TensorView tensor(memory.data(), DType::bf16, {1, rows, heads, dim}, gpu);
      for (int pass = 0; pass < 2; ++pass) {
        values[599] = transport.rank() == 1 && pass == differs_in ? 0.25f : 0.5f;
        attention.forward({.q = tensor, .k = tensor, .v = tensor, .params = {{bias, view}}},
                          {.out = TensorView(results.data(), DType::bf16, {1, rows, heads, dim}, gpu)});
      }
    });
  };
  for (const bool checked : {false, true}) {
    expect_no(errors(checked, -1));
    for (const int pass : {0, 1})
      for (const std::string& error : errors(checked, pass))
        EXPECT_EQ(error.find("ranks 0 and 1 differ in values of parameters") != std::string::npos, pass == 0 || checked) << pass << error;
  }
}

/// Ranks with tensors on a GPU and messages in host memory: where one refuses its call, or has its tensors elsewhere, all are told and go on.
TEST(Staged, ErrorsOfFirstCallsAreThoseOfAllRanks) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  const auto transports = thread_ranks(2, {.time_limit = 20});
  std::vector<std::string> refused(2), elsewhere(2);
  test::on_threads(2, [&](int rank) {
    const auto error_of = [](auto&& fn) -> std::string {
      try {
        fn();
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    constexpr std::int64_t heads = 2, dim = 64;
    const WholeShapes shapes{
        .dtype = DType::bf16, .heads_q = heads, .heads_kv = heads, .seqlen_q = 512, .seqlen_kv = 512, .head_dim = dim, .head_dim_v = dim};
    const std::shared_ptr<Transport> transport = transports[static_cast<std::size_t>(rank)];
    ContextAttention attention(transport, {.mask = causal()}, shapes);
    const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * heads * dim)), results(values.size());
    const auto run = [&](Device device) {
      const TensorView tensor(values.data(), DType::bf16, {1, rows, heads, dim}, device);
      attention.forward({.q = tensor, .k = tensor, .v = tensor},
                        {.out = TensorView(results.data(), DType::bf16, {1, rows, heads, dim}, device)});
    };
    refused[static_cast<std::size_t>(rank)] = error_of([&] {
      if (rank == 0) return run(gpu);
      Agreement agreement;  // as callers of other languages do before they have a call
      agreement.refuse(std::make_exception_ptr(Error(ErrorCode::invalid_argument, "q: of an unknown dtype")));
      agreement.exchange(*transport);
    });
    elsewhere[static_cast<std::size_t>(rank)] = error_of([&] { run(rank == 0 ? gpu : Device{}); });
    run(gpu);
  });
  EXPECT_EQ(refused[0], "context parallelism: rank 1: q: of an unknown dtype");
  for (const std::string& error : elsewhere) {
    EXPECT_NE(error.find("differ in call: rank 0 has a forward pass on GPUs"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1 has a forward pass on CPUs"), std::string::npos) << error;
  }
}

/// Beside others whose memory is free only at the call.
TEST(Peers, MessagesMayBeAllowedEarly) {
  expect_no(on_ranks(2, [](Transport& transport) {
    const int me = transport.rank(), peer = 1 - me;
    auto* inbox = static_cast<int*>(transport.allocate(256));
    std::uint64_t before = 0;
    for (int round = 0; round < 100; ++round) {
      std::array<int, 4> words{};
      std::array<std::uint64_t, 4> tickets{};
      for (int i = 0; i < 4; ++i) {
        words[static_cast<std::size_t>(i)] = 1000 * round + 10 * i + me;
        tickets[static_cast<std::size_t>(i)] = transport.start_on(
            {}, {{peer, &words[static_cast<std::size_t>(i)], sizeof(int)}},
            {{.peer = peer, .data = inbox + 4 * (round % 2) + i, .bytes = sizeof(int), .free_since = i % 2 ? before : 0}});
      }
      for (const std::uint64_t ticket : tickets) transport.wait_on({}, ticket);
      for (int i = 0; i < 4; ++i) ASSERT_EQ(inbox[4 * (round % 2) + i], 1000 * round + 10 * i + peer) << round << ' ' << i;
      before = tickets[0];
    }
    transport.release(inbox);
  }));
}

std::mutex launches_mutex;
std::map<void*, std::set<void*>> statistics_of_streams;  ///< where backward launches of each stream find lse

/// On a GPU of its own a rank computes others' keys beside its own ones, with statistics of their own; not where their order counts, nor where ranks share a GPU.
TEST(Peers, KeysOfOthersAreComputedOnAStreamOfTheirOwn) {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  cuda::jit::set_cache_folder("");
  mock::call_for_launches([](const cuda::driver::LaunchConfig& config, const void* argument, std::size_t bytes) {
    constexpr unsigned least_of_products = 100'000;
    if (bytes != sizeof(device::Sm90Args) || config.shared_bytes < least_of_products) return;
    const auto& args = *static_cast<const device::Sm90Args*>(argument);
    if (args.attention.delta.data == nullptr) return;  // forward
    const std::lock_guard lock(launches_mutex);
    statistics_of_streams[config.stream].insert(args.attention.lse2.data);
  });
  const auto streams = [](const char* text, bool shares_gpu) {
    statistics_of_streams.clear();
    const problem::CaseData data(problem::parse_line(text));
    ContextOptions options;
    options.unit = 128;
    expect_no(on_ranks(2, [&](Transport& transport) {
      const std::shared_ptr<Transport> borrowed(&transport, [](Transport*) {});
      const std::shared_ptr<Transport> alone = std::make_shared<Watched>(borrowed, [] {});
      test::run_rank(shares_gpu ? borrowed : alone, data, options, {}, {}, gpu);
    }));
    std::set<void*> all;
    std::size_t of_streams = 0;
    for (const auto& [stream, statistics] : statistics_of_streams)
      all.insert(statistics.begin(), statistics.end()), of_streams += statistics.size();
    EXPECT_EQ(all.size(), of_streams) << text << ": launches that run side by side share statistics";
    return statistics_of_streams.size();
  };
  const char* causal = "backward bf16 h2 q1500 d128 mask=\"causal()\"";
  EXPECT_EQ(streams(causal, false), 2u);  // the mock makes all streams alike
  EXPECT_EQ(streams(causal, true), 1u);
  EXPECT_EQ(streams("backward bf16 h2 q1500 d128 mask=\"causal()\" determinism=reproducible", false), 1u);
  mock::call_for_launches(nullptr);
}

/// A process that ends without a word is seen by the others, for the kernel drops its lock.
TEST(Mailbox, TheDeadAreSeen) {
  const std::string name = Mailbox::new_name();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      Mailbox mailbox(name, 1, 2, 10);
      int word = 5, both[2];
      mailbox.gather(&word, sizeof word, both);
      _exit(both[0] == 4 ? 0 : 1);  // no destructor runs
    } catch (...) {
      _exit(2);
    }
  }
  Mailbox mailbox(name, 0, 2, 10);
  int word = 4, both[2] = {};
  mailbox.gather(&word, sizeof word, both);
  EXPECT_EQ(both[1], 5);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  mailbox.check_processes();
  EXPECT_TRUE(mailbox.has_failed());
  try {
    mailbox.gather(&word, sizeof word, both);
    ADD_FAILURE() << "a gather with the dead came to an end";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 ended: its process is gone"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace foveal::dist
