#pragma once
// Context parallelism: one attention whose tokens are distributed over several ranks.
//
// Every rank constructs a ContextAttention from the same description and the sizes of the whole problem. The mask determines which tokens
// each rank holds and which keys it receives from others. A rank's tensors are rows q_tokens() and kv_tokens() of the whole tensors, in
// that order. forward() and backward() are collective: all ranks call them, in the same order. Results are those of a single device.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foveal/attention.h"

namespace foveal::dist {

/// A send to, or a receive from, another rank.
struct Message {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  /// More than one: the message is rows of row_bytes, and start_on() may deliver all messages of a call slice by
  /// slice, so that kernels begin with the first heads. Slice i ends at first_slice_bytes << i of every row, the last
  /// one at its end. Sender and receiver name the same.
  int slices = 1;
  std::size_t row_bytes = 0, first_slice_bytes = 0;
  /// Of a receive of start_on(): the ticket of an earlier call. The memory has been free since the stream reached that call, so the message
  /// may arrive before the stream reaches this one; 0: it may not. A transport may ignore it.
  std::uint64_t free_since = 0;
};

/// A device-readable word by which a kernel waits for messages: they have arrived once it has counted up to `value` (it may wrap around).
struct ArrivalWord {
  const std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
  const std::uint32_t* failed = nullptr;  ///< nonzero: they will never arrive
  int slices = 1;                         ///< each counts when it has arrived: the first when the word is at value - slices + 1
};

/// The network of a rank. Each rank calls it from one thread. A failure, or a wait that exceeds its time limit, throws an Error with
/// ErrorCode::communication.
class FOVEAL_API Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts nonblocking sends and receives, none of them to this rank itself, and returns a ticket. Their memory must not be touched before
  /// wait(). Messages between two ranks arrive in the order in which they were started.
  virtual std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) = 0;
  /// Returns when all messages of the ticket are complete. Called once per ticket.
  virtual void wait(std::uint64_t ticket) = 0;
  /// Collective: writes the bytes of all ranks, in rank order, to `all`. Host memory.
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;

  /// Whether messages may be in device memory. If not, they are staged through host memory and every pass synchronises with its GPU.
  virtual bool carries_device_memory() const { return false; }
  /// "threads", "MPI", "NCCL", "peer copies"
  virtual std::string name() const { return "messages"; }
  /// Device memory that messages of start_on() must be received in; null if any memory will do.
  virtual void* allocate(std::size_t bytes) { return static_cast<void>(bytes), nullptr; }
  /// Releases it, once this rank's work on it has completed.
  virtual void release(void* memory) noexcept { static_cast<void>(memory); }
  /// Multiprocessors of the GPU that transfers of device memory occupy; concurrent launches leave them free.
  virtual int multiprocessors() const { return 0; }
  /// start() and wait() for device memory, in stream order: transfers begin after earlier work on the stream, and work enqueued after
  /// wait_on() begins after the transfers. Neither blocks the host. Called only if carries_device_memory().
  virtual std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives);
  virtual void wait_on(Stream stream, std::uint64_t ticket);
  /// Whether ranks share a GPU: there, a kernel that waits for another rank could keep that rank's kernel from starting.
  virtual bool ranks_share_gpus() const { return false; }
  /// The word by which a kernel may wait for a peer's messages of a ticket; none if the messages need multiprocessors, since the wait could
  /// deadlock. wait_on() follows in any case.
  virtual std::optional<ArrivalWord> arrival_word(std::uint64_t ticket, int peer) {
    return static_cast<void>(ticket), static_cast<void>(peer), std::nullopt;
  }
  /// Reports that this rank has failed, so that waits of the others fail at once with this text rather than at their time limit, if the
  /// network supports it. From then on every call of every rank fails.
  virtual void fail(const std::string& why) noexcept { static_cast<void>(why); }
  /// Why its calls fail from now on, where the network does not tell the other ranks; else empty.
  virtual std::string failure() const { return {}; }
};

/// For transports: keeps memory alive to the end of the process. After a failure, messages in flight may still access it.
FOVEAL_API void keep_for_good(std::shared_ptr<void> memory);

/// An all_gather() for transports: one message to and from every other rank.
FOVEAL_API void all_gather_by_messages(Transport& transport, const void* mine, std::size_t bytes, void* all);

struct ThreadOptions {
  double time_limit = 60;        ///< seconds per wait
  std::uint64_t delay_seed = 0;  ///< for tests: nonzero delays messages at random
};
/// Ranks as threads of this process: one transport for each.
FOVEAL_API std::vector<std::shared_ptr<Transport>> thread_ranks(int ranks, const ThreadOptions& options = {});

/// The ranks of an MPI communicator, given by its Fortran handle (MPI_Comm_c2f), an integer in every implementation. libmpi is loaded at
/// run time; one that the process has already loaded is used. MPI must be initialised. Throws unsupported if libmpi is missing (the message
/// names the package) or its implementation is unknown.
FOVEAL_API std::shared_ptr<Transport> mpi_ranks(int fortran_communicator, double time_limit = 600);
/// The same for MPI_COMM_WORLD. Initialises MPI if necessary, and then finalises it at exit.
FOVEAL_API std::shared_ptr<Transport> mpi_world(double time_limit = 600);

struct NcclOptions {
  double time_limit = 600;   ///< seconds per transfer, from when it can start; then it is aborted, and the next call fails
  int multiprocessors = 16;  ///< upper bound for transfers of this communicator; 0: NCCL's choice
};
/// The unique id of an NCCL communicator (128 bytes), created by rank 0 and sent to the others. libnccl is loaded at run time; one that the
/// process has already loaded is used. Throws unsupported, naming the package, if it is missing.
FOVEAL_API std::string nccl_id();
/// Ranks with a GPU each, over NCCL. Collective: all ranks call it with the same id.
FOVEAL_API std::shared_ptr<Transport> nccl_ranks(const std::string& id, int rank, int size, Device device, const NcclOptions& options = {});
/// The same, with the id exchanged over an existing transport: threads, MPI.
FOVEAL_API std::shared_ptr<Transport> nccl_ranks(Transport& control, Device device, const NcclOptions& options = {});

struct PeerOptions {
  double time_limit = 600;  ///< seconds per transfer, from when it can start, and per wait for other ranks; then all ranks fail
};
/// The id of a group of ranks on one host that use peer copies, created by rank 0 and sent to the others.
FOVEAL_API std::string peer_id();
/// Whether this process is on the host of the rank that created the id.
FOVEAL_API bool peer_reachable(const std::string& id);
/// Ranks with a GPU each, as threads or processes of one host. The GPUs' copy engines move messages, so kernels keep all multiprocessors.
/// Collective: all ranks call it with the same id. Throws unsupported on every rank if a GPU has no peer access to another, or a rank is
/// not on rank 0's host.
FOVEAL_API std::shared_ptr<Transport> peer_ranks(const std::string& id, int rank, int size, Device device, const PeerOptions& options = {});

/// Ranks with a GPU each, set up over an existing transport: peer copies if all ranks are on one host with peer access, else NCCL.
FOVEAL_API std::shared_ptr<Transport> gpu_ranks(Transport& control, Device device, const NcclOptions& options = {});

/// Sizes of the whole problem.
struct WholeShapes {
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64, head_dim_v = 64;
  /// Packed sequences: {tokens of q, tokens of kv} of each; batch, seqlen_q and seqlen_kv are then ignored.
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths{};
};

class ContextLayout;

struct ContextOptions {
  std::string deal = "automatic";  ///< distribution of tokens: contiguous, zigzag, pieces, or automatic (the fastest by prediction)
  int head_groups = 0;             ///< groups that the heads are split into; 0: chosen by prediction
  int remote_steps = 0;            ///< steps in which keys of other ranks are gathered; 0: chosen by prediction
  std::string machine = "nvlink";  ///< interconnect assumed by predictions: nvlink, network
  std::int64_t unit = 128;         ///< chunks are multiples of this many tokens, except at the end of a sequence
  PlanOptions plan{};              ///< how a rank computes
  /// A distribution shared with other attentions; null: one for this attention. Overrides deal, head_groups and unit.
  std::shared_ptr<const ContextLayout> layout{};
};

/// One of several attentions over the same sequences, with the parameters that its mask and score read.
struct LayoutUse {
  Attention attention{};
  std::vector<ParamBinding> params{};
};

/// A distribution of tokens for a model whose layers differ in their masks: the one with the least predicted time for all of them together.
class FOVEAL_API ContextLayout {
 public:
  /// Every rank constructs it from the same arguments; nothing is communicated. Repeat a use to give it more weight. Throws
  /// invalid_argument if the options cannot be met.
  ContextLayout(const std::vector<LayoutUse>& uses, const WholeShapes& shapes, int ranks, const ContextOptions& options = {});
  std::vector<std::int64_t> q_tokens(int rank) const;
  std::vector<std::int64_t> kv_tokens(int rank) const;
  std::string deal() const;
  int head_groups() const;
  std::int64_t unit() const;

 private:
  friend class ContextAttention;
  struct __attribute__((visibility("hidden"))) State;  // not exported, unlike the class around it
  std::shared_ptr<const State> state_;
};

/// The tokens of one sequence that a rank holds under a deal that is independent of the mask: contiguous or zigzag.
FOVEAL_API std::vector<std::int64_t> tokens_of(std::int64_t seqlen, int ranks, int rank, const std::string& deal, std::int64_t unit = 128,
                                               int head_groups = 1);

class FOVEAL_API ContextAttention {
 public:
  /// Collective. params: all parameters of score and mask, whole, the same on every rank. The plan depends on the data of those that the
  /// mask reads; a pass on the CPU with other data is refused. Throws invalid_argument on every rank, naming what differs, if the ranks'
  /// arguments do.
  ContextAttention(std::shared_ptr<Transport> transport, const Attention& attention, const WholeShapes& shapes,
                   const std::vector<ParamBinding>& params = {}, const ContextOptions& options = {});
  ~ContextAttention();
  ContextAttention(ContextAttention&&) noexcept;
  ContextAttention& operator=(ContextAttention&&) noexcept;

  /// The token of the whole problem in each row of this rank's q, out and their gradients; packed sequences are numbered one after the
  /// other.
  const std::vector<std::int64_t>& q_tokens() const;
  const std::vector<std::int64_t>& kv_tokens() const;
  /// The same for any rank.
  std::vector<std::int64_t> q_tokens(int rank) const;
  std::vector<std::int64_t> kv_tokens(int rank) const;
  std::string explain() const;
  /// Bytes that a pass is planned to allocate in addition to the call's tensors, and that the last pass did allocate. Host memory: without
  /// the workspaces of its calls. GPUs: with the dq accumulators; the forward figure assumes launches that take whole rows.
  std::size_t memory_bytes(Pass pass) const;
  std::size_t used_bytes() const;
  /// Bytes that this rank is planned to receive and to send in a pass, without gradients of parameters.
  std::pair<std::int64_t, std::int64_t> planned_bytes(Pass pass) const;

  /// Collective. Tensors hold this rank's rows: q [batch, rows, heads_q, head_dim] and so on, lse [batch, heads_q, rows]; packed: q [rows,
  /// heads_q, head_dim], lse [heads_q, rows]. All are in host memory, or all on one GPU, where the work is enqueued on the stream without
  /// blocking (unless the transport carries host memory only, or dropout takes its seeds from the host). `varlen`, `segments` and `part`
  /// stay empty. A rank without rows passes views of size 0. On a GPU the data of parameters that the mask reads must be those that were
  /// planned for: this is not checked.
  void forward(const ForwardInputs& inputs, const ForwardOutputs& outputs, Stream stream = {});
  /// Optional, before the first forward(): a backward() for dq, dk, dv and the gradients of these parameters will follow, with dlse or
  /// without. On a GPU its kernels are compiled beside those of the forward pass. Another backward() is as right, and compiles its own.
  void backward_follows(const std::vector<Param>& trained = {}, bool dlse = false);
  /// Collective. Gradients of parameters are those of the whole problem, the same on every rank.
  void backward(const BackwardInputs& inputs, const BackwardOutputs& outputs, Stream stream = {});

 private:
  struct __attribute__((visibility("hidden"))) State;  // not exported, unlike the class around it
  std::unique_ptr<State> state_;
};

}  // namespace foveal::dist
