#pragma once
// Context parallelism: one attention over tensors whose tokens are dealt to several ranks.
//
// Every rank makes a ContextAttention from the same description and the whole problem's sizes. From the mask it plans who holds which
// tokens and which keys each rank must receive; a rank's tensors are then the rows q_tokens() and kv_tokens() of the whole ones, in that
// order, and forward() and backward() are collective: all ranks call them, in the same order. Results are those of one device.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foveal/attention.h"

namespace foveal::dist {

/// Bytes to or from another rank.
struct Message {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Memory that the device reads: messages have arrived when it holds `value`, or what comes later in counting up.
struct ArrivalWord {
  const std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
  const std::uint32_t* failed = nullptr;  ///< not 0: they will never arrive
};

/// What a plan needs of a network. Calls come from one thread for each rank. A failure, or a wait longer than its time limit, is an Error
/// with ErrorCode::communication.
class FOVEAL_API Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts sends and receives, none of them to this rank itself, and returns a ticket at once; the memory stays as it is until wait().
  /// Between two ranks, messages arrive in the order in which they were started.
  virtual std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) = 0;
  /// Returns when all messages of the ticket have left or arrived. Each ticket is waited for once.
  virtual void wait(std::uint64_t ticket) = 0;
  /// Collective: the bytes of all ranks, in their order, in `all`. Host memory.
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;

  /// Are messages in device memory carried? If not, they go through host memory, and every pass waits for its GPU.
  virtual bool carries_device_memory() const { return false; }
  /// Which engine it is: "threads", "MPI", "NCCL", "peer copies".
  virtual std::string name() const { return "messages"; }
  /// Memory of the device that messages of start_on() are to arrive in; null, if they may arrive in any.
  virtual void* allocate(std::size_t bytes) { return static_cast<void>(bytes), nullptr; }
  /// Gives it back, when the work of this rank with it has ended.
  virtual void release(void* memory) noexcept { static_cast<void>(memory); }
  /// Of the GPU, that transfers of device memory occupy while they last: launches beside them leave so many free.
  virtual int multiprocessors() const { return 0; }
  /// The same as start() and wait() for device memory: transfers begin when the work before them on the stream has ended, and work that
  /// comes after wait_on() begins when they have. Neither waits for the device. Called only where carries_device_memory().
  virtual std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives);
  virtual void wait_on(Stream stream, std::uint64_t ticket);
  /// Do ranks share a GPU? Work there that waits for another rank could keep that rank's from starting.
  virtual bool ranks_share_gpus() const { return false; }
  /// What a kernel may wait for instead, of a peer's messages of a ticket; nothing where it could wait for ever, as multiprocessors carry
  /// messages. wait_on() follows in any case.
  virtual std::optional<ArrivalWord> arrival_word(std::uint64_t ticket, int peer) {
    return static_cast<void>(ticket), static_cast<void>(peer), std::nullopt;
  }
  /// This rank cannot go on: the waits of the others are to fail at once, with this text, instead of at their time limit, where the network
  /// can tell them. Afterwards the transport is of no more use to anyone: every call of every rank fails.
  virtual void fail(const std::string& why) noexcept { static_cast<void>(why); }
};

/// For a transport: keeps memory to the end of the process. After a failure, messages that are still under way may read or write it.
FOVEAL_API void keep_for_good(std::shared_ptr<void> memory);

/// For a transport's all_gather: one message to and from every other rank.
FOVEAL_API void all_gather_by_messages(Transport& transport, const void* mine, std::size_t bytes, void* all);

struct ThreadOptions {
  double time_limit = 60;        ///< seconds that a wait may take
  std::uint64_t delay_seed = 0;  ///< for tests: not 0 delays messages at random
};
/// Ranks that are threads of this process: one transport for each.
FOVEAL_API std::vector<std::shared_ptr<Transport>> thread_ranks(int ranks, const ThreadOptions& options = {});

/// A communicator of MPI, by its Fortran handle (MPI_Comm_c2f), which is an integer in every implementation. libmpi is loaded at run time:
/// the one that the process has loaded already, if any. MPI must have been initialised. Throws unsupported,
/// naming the package, without libmpi, and when its implementation is not known.
FOVEAL_API std::shared_ptr<Transport> mpi_ranks(int fortran_communicator, double time_limit = 600);
/// The same for all processes: MPI_COMM_WORLD. Initialises MPI where that has not been done, and finalises it at exit then.
FOVEAL_API std::shared_ptr<Transport> mpi_world(double time_limit = 600);

struct NcclOptions {
  double time_limit = 600;   ///< seconds that a transfer may take once its turn has come; then it is ended, and the next call fails
  int multiprocessors = 16;  ///< at most so many of the GPU carry the transfers of this communicator; 0: NCCL's choice
};
/// What ranks of one communicator of NCCL have in common, made by rank 0: 128 bytes. libnccl is loaded at run time: the one that the process
/// has loaded already, if any. Throws unsupported, naming the package, without it.
FOVEAL_API std::string nccl_id();
/// Ranks with a GPU each. Collective: all ranks call it, with the same id.
FOVEAL_API std::shared_ptr<Transport> nccl_ranks(const std::string& id, int rank, int size, Device device, const NcclOptions& options = {});
/// The same over ranks that can talk to each other already: threads, MPI.
FOVEAL_API std::shared_ptr<Transport> nccl_ranks(Transport& control, Device device, const NcclOptions& options = {});

struct PeerOptions {
  double time_limit = 600;  ///< seconds that a transfer may take once its turn has come, or a wait for the others; then all ranks fail
};
/// What ranks of one host have in common whose GPUs are to copy to each other's memory, made by rank 0.
FOVEAL_API std::string peer_id();
/// Is this process on the host of the rank that made the id?
FOVEAL_API bool peer_reachable(const std::string& id);
/// Ranks with a GPU each, threads or processes of one host. Copy engines carry the messages, beside kernels that have all multiprocessors.
/// Collective: all ranks call it, with the same id. Throws unsupported on all of them when a GPU does not reach another's memory, or when
/// this rank is on another host than rank 0.
FOVEAL_API std::shared_ptr<Transport> peer_ranks(const std::string& id, int rank, int size, Device device, const PeerOptions& options = {});

/// Ranks with a GPU each, over ranks that can talk already: by peer copies where all are on one host and their GPUs reach each other, else by
/// NCCL.
FOVEAL_API std::shared_ptr<Transport> gpu_ranks(Transport& control, Device device, const NcclOptions& options = {});

/// Sizes of the whole problem.
struct WholeShapes {
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64, head_dim_v = 64;
  /// Packed sequences: {tokens of q, tokens of kv} of each; batch, seqlen_q and seqlen_kv do not count then.
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths{};
};

class ContextLayout;

struct ContextOptions {
  std::string deal = "automatic";  ///< or contiguous, zigzag, pieces
  int head_groups = 0;             ///< shares of the heads; 0: picked by predicted time
  int remote_steps = 0;            ///< steps in which keys of other ranks are gathered; 0: picked
  std::string machine = "nvlink";  ///< links that times are predicted with: nvlink, network
  std::int64_t unit = 128;         ///< chunks are multiples of so many tokens, but for the end of a sequence
  PlanOptions plan{};              ///< how a rank computes
  /// Who holds which tokens, for several attentions; null: chosen for this one. With it, deal, head_groups and unit are those it was made with.
  std::shared_ptr<const ContextLayout> layout{};
};

/// One of several attentions over the same sequences, and what its mask and score read.
struct LayoutUse {
  Attention attention{};
  std::vector<ParamBinding> params{};
};

/// Who holds which tokens when the layers of a model differ in their masks: the deal of least predicted time for all of them together.
class FOVEAL_API ContextLayout {
 public:
  /// Every rank makes it from the same arguments; nothing is exchanged. A mask that comes more often counts more often. Throws
  /// invalid_argument when the options cannot be met.
  ContextLayout(const std::vector<LayoutUse>& uses, const WholeShapes& shapes, int ranks, const ContextOptions& options = {});
  std::vector<std::int64_t> q_tokens(int rank) const;
  std::vector<std::int64_t> kv_tokens(int rank) const;
  std::string deal() const;
  int head_groups() const;
  std::int64_t unit() const;

 private:
  friend class ContextAttention;
  struct State;
  std::shared_ptr<const State> state_;
};

/// The tokens of one sequence that a rank holds, by a deal that does not look at the mask: contiguous or zigzag.
FOVEAL_API std::vector<std::int64_t> tokens_of(std::int64_t seqlen, int ranks, int rank, const std::string& deal, std::int64_t unit = 128,
                                               int head_groups = 1);

class FOVEAL_API ContextAttention {
 public:
  /// Collective. params: all that the score and the mask read, whole, the same on every rank; the data of those that the mask reads decide
  /// the plan, and a pass with other data is refused. Throws invalid_argument on every rank when ranks disagree, naming what differs.
  ContextAttention(std::shared_ptr<Transport> transport, const Attention& attention, const WholeShapes& shapes,
                   const std::vector<ParamBinding>& params = {}, const ContextOptions& options = {});
  ~ContextAttention();
  ContextAttention(ContextAttention&&) noexcept;
  ContextAttention& operator=(ContextAttention&&) noexcept;

  /// For each row of this rank's q, out and their gradients: its token of the whole (packed: of all sequences one after the other).
  const std::vector<std::int64_t>& q_tokens() const;
  const std::vector<std::int64_t>& kv_tokens() const;
  /// The same of any rank.
  std::vector<std::int64_t> q_tokens(int rank) const;
  std::vector<std::int64_t> kv_tokens(int rank) const;
  std::string explain() const;
  /// Bytes that a pass allocates beside the tensors of the call, as planned; and what the last one did. In host memory without the workspaces of its calls; on
  /// GPUs with the dq that a launch sums, and of forward passes whose launches take whole rows.
  std::size_t memory_bytes(Pass pass) const;
  std::size_t used_bytes() const;
  /// Bytes that this rank receives and sends in a pass, as planned; gradients of parameters come on top.
  std::pair<std::int64_t, std::int64_t> planned_bytes(Pass pass) const;

  /// Collective. Tensors hold this rank's rows: q [batch, rows, heads_q, head_dim] and so on, lse [batch, heads_q, rows]; packed: q [rows,
  /// heads_q, head_dim], lse [heads_q, rows]. All in host memory, or all on one GPU, where the work is put on the stream and nothing waits for
  /// it (unless the transport carries host memory only, or pairs are dropped by seeds of the host). `varlen`, `segments` and `part` stay
  /// empty. A rank without rows gives views of size 0. On a GPU the data of parameters that the mask reads are those that the plan was made
  /// for: nobody looks.
  void forward(const ForwardInputs& inputs, const ForwardOutputs& outputs, Stream stream = {});
  /// Collective. Gradients of parameters are those of the whole, the same on every rank.
  void backward(const BackwardInputs& inputs, const BackwardOutputs& outputs, Stream stream = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foveal::dist
