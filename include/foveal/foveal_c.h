#ifndef FOVEAL_C_H
#define FOVEAL_C_H
/* The C interface: plan, run, explain, targets, context parallelism. C11 without dependencies, callable from Rust, Julia, ctypes and so on.
 *
 * Structs that may grow begin with struct_size. Initialise them with FOVEAL_INIT, or zero them and set struct_size to sizeof; zero is the
 * default of every field. The size of any released version of the struct is accepted, any other is refused. Functions return FOVEAL_OK or an
 * error code; foveal_last_error() then returns this thread's message. Nothing prints or exits. */
#include <stddef.h>
#include <stdint.h>

#include "foveal/export.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FOVEAL_OK = 0,
  FOVEAL_INVALID_ARGUMENT = 1,
  FOVEAL_UNSUPPORTED = 2,
  FOVEAL_COMPILE_FAILED = 3,
  FOVEAL_DEVICE = 4,
  FOVEAL_COMMUNICATION = 5,
  FOVEAL_INTERNAL = 6 /* any other exception, such as std::bad_alloc */
};

/* dtypes. 0 is none of them, so that a tensor without a dtype is refused. */
enum {
  FOVEAL_F32 = 1,
  FOVEAL_BF16 = 2,
  FOVEAL_F16 = 3,
  FOVEAL_I64 = 4,
  FOVEAL_I32 = 5,
  FOVEAL_I16 = 6,
  FOVEAL_I8 = 7,
  FOVEAL_U8 = 8,
  FOVEAL_BOOLEAN = 9,
  FOVEAL_F64 = 10
};
enum { FOVEAL_CPU, FOVEAL_CUDA };
enum { FOVEAL_FORWARD, FOVEAL_BACKWARD };
enum { FOVEAL_FAST, FOVEAL_REPRODUCIBLE };
enum { FOVEAL_AUTOMATIC, FOVEAL_FUSED, FOVEAL_SPLIT, FOVEAL_TWO_SCAN };

#define FOVEAL_MAX_RANK 6
#ifdef __cplusplus /* which has no compound literals, and before C++20 no designated initialisers */
#define FOVEAL_INIT(type)                  \
  ([] {                                    \
    type foveal_new{};                     \
    foveal_new.struct_size = sizeof(type); \
    return foveal_new;                     \
  }())
#else
#define FOVEAL_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* A strided view of the caller's memory, strides in elements; see foveal_contiguous() and foveal_packed_qkv(). */
typedef struct foveal_tensor {
  void* data;
  int32_t dtype;        /* FOVEAL_F32, ... */
  int32_t device_kind;  /* FOVEAL_CPU or FOVEAL_CUDA */
  int32_t device_index; /* -1: the device of the calling thread's CUDA context */
  int32_t rank;
  int64_t sizes[FOVEAL_MAX_RANK];
  int64_t strides[FOVEAL_MAX_RANK];
} foveal_tensor;

/* What to compute, as foveal::Attention. Expressions are text in the score language (docs/score-language.md); null: absent. */
typedef struct foveal_attention {
  size_t struct_size;
  const char* score_mod;
  const char* mask;
  const char* sink; /* name of the parameter with the sink logits, real [heads_q] */
  double scale;     /* 0: 1 / sqrt(head_dim) */
  double dropout_p;
  int64_t q_offset;
  int64_t kv_offset;
  int32_t determinism; /* FOVEAL_FAST or FOVEAL_REPRODUCIBLE */
  int32_t backward;    /* strategy: FOVEAL_AUTOMATIC, ... */
  int32_t checked;     /* 1: check every parameter index at run time */
  int32_t accumulate;  /* backward: 1 adds to dq, dk, dv and parameter gradients; 0 overwrites them */
} foveal_attention;

/* A parameter, its data and, in a backward pass, its gradient. */
typedef struct foveal_param {
  const char* declaration; /* "rel: real[4, 33]"; read by planning only: a plan's run identifies parameters by their order */
  const foveal_tensor* tensor;
  const foveal_tensor* gradient; /* null: not requested; forward passes ignore it */
} foveal_param;

/* The tensors of one call; null: absent. Strides are arbitrary, but for cu_seqlens and dropout_state, which are contiguous. Sizes:
 *
 *   q             [batch, seqlen_q, heads_q, head_dim]          packed sequences:  [total_q, heads_q, head_dim]
 *   k             [batch, seqlen_kv, heads_kv, head_dim]                           [total_kv, heads_kv, head_dim]
 *   v             [batch, seqlen_kv, heads_kv, head_dim_v]                         [total_kv, heads_kv, head_dim_v]
 *   out, dout     [batch, seqlen_q, heads_q, head_dim_v]                           [total_q, heads_q, head_dim_v]
 *   lse, dlse     [batch, heads_q, seqlen_q], F32 (F64 for F64 inputs)             [heads_q, total_q]
 *   dq, dk, dv    as q, k, v                                                       as q, k, v
 *   cu_seqlens    none                                                             I32 or I64 [batch + 1]: 0, then cumulative lengths
 *
 * Paged keys and values, with batched or packed queries: k, v, dk, dv are pools [pages, page_size, heads_kv, dim], page_size a multiple of
 * 16. block_table, I32 [batch, pages of the longest sequence], holds the page of keys [i * page_size, (i + 1) * page_size) of each sequence.
 * seqlens_kv, I32 or I64 [batch], holds the number of keys of each sequence. cu_seqlens_kv is null. Sequences may share pages.
 *
 * All tensors are on one device. q, k, v, out, dout, dq, dk, dv have one dtype: F64, F32, BF16 or F16; on CPUs, outputs of BF16 and F16 calls
 * may be F32. heads_q is a multiple of heads_kv; query head h uses kv head h / (heads_q / heads_kv). lse is the natural logarithm of the
 * softmax denominator: optional in a forward pass, required in a backward pass. dq, dk, dv and parameter gradients are each optional. Outputs
 * must not overlap each other or an input. In a forward pass dout to dv must be null. */
typedef struct foveal_call {
  size_t struct_size;
  int32_t pass; /* FOVEAL_FORWARD or FOVEAL_BACKWARD */
  int32_t param_count;
  const foveal_param* params;
  const foveal_tensor *q, *k, *v;
  const foveal_tensor *out, *lse;                    /* forward: written; backward: read */
  const foveal_tensor *dout, *dlse;                  /* backward only */
  const foveal_tensor *dq, *dk, *dv;                 /* backward only */
  const foveal_tensor *cu_seqlens_q, *cu_seqlens_kv; /* both: packed sequences */
  int64_t max_seqlen_q, max_seqlen_kv;               /* of packed sequences: the longest, or a bound; 0: found in each run (CPU only) */
  uint64_t dropout_seed, dropout_offset; /* Philox state: which pairs this run drops; a backward pass takes its forward pass's */
  const foveal_tensor* dropout_state;    /* replaces the two if not null: I64 [2] on q's device with their bits, read when kernels run */
  const foveal_tensor *block_table, *seqlens_kv; /* both: paged keys and values */
} foveal_call;

typedef struct foveal_options {
  size_t struct_size;
  const char* backend; /* null: the first that supports the problem */
  const char* target;
  int32_t threads; /* 0: the default, that of foveal_set_num_threads */
  int32_t reserved;
  const char* exclude; /* comma-separated backends that must not be chosen */
} foveal_options;

typedef struct foveal_target {
  const char* backend; /* all strings live as long as the process */
  const char* target;
  const char* detail;
  int32_t available;
  int32_t reserved;
} foveal_target;

typedef struct foveal_plan foveal_plan;

/* Plans a call; the data of its tensors, and options, may be null. Release *plan with foveal_plan_destroy(). */
FOVEAL_API int foveal_plan_create(const foveal_attention* attention, const foveal_call* call, const foveal_options* options,
                                  foveal_plan** plan);
/* Null does nothing. No thread may be inside a run of the plan; what it has queued on a GPU still completes. */
FOVEAL_API void foveal_plan_destroy(foveal_plan* plan);
/* What each run needs; may be 0. */
FOVEAL_API size_t foveal_plan_workspace_bytes(const foveal_plan* plan);
/* The kernel that was chosen, such as "cpu.avx512.f32.forward". Valid as long as the plan. */
FOVEAL_API const char* foveal_plan_kernel(const foveal_plan* plan);
/* Writes at most `size` bytes, the last one 0. Returns the length of the complete text, as snprintf does. */
FOVEAL_API size_t foveal_plan_explain(const foveal_plan* plan, char* text, size_t size);
/* workspace: foveal_plan_workspace_bytes() bytes on the plan's device, aligned to 256. Thread-safe; concurrent runs need a workspace each.
 * stream: a cudaStream_t, ignored on the CPU. On a GPU the work is enqueued and the call returns. */
FOVEAL_API int foveal_plan_run(const foveal_plan* plan, const foveal_call* call, void* workspace, void* stream);

/* Plans (or reuses a cached plan), takes workspace from a per-thread pool, and runs. */
FOVEAL_API int foveal_run(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, void* stream);

/* Fills *tensor as a contiguous (row-major) view on the CPU; set device_kind and device_index for a GPU. FOVEAL_INVALID_ARGUMENT: a rank above
 * FOVEAL_MAX_RANK or a negative size. */
FOVEAL_API int foveal_contiguous(foveal_tensor* tensor, void* data, int32_t dtype, int32_t rank, const int64_t* sizes);
/* Fills qkv[0], qkv[1], qkv[2] as q, k and v [batch, seqlen, heads, channels / heads] in one buffer [batch, seqlen, 3 * channels], the output
 * of a fused QKV projection; the same for dq, dk, dv. FOVEAL_INVALID_ARGUMENT: heads does not divide channels. */
FOVEAL_API int foveal_packed_qkv(foveal_tensor qkv[3], void* data, int32_t dtype, int64_t batch, int64_t seqlen, int64_t channels,
                                 int64_t heads);

/* The table of backends and targets of this build: rows 0 to count - 1. */
FOVEAL_API size_t foveal_target_count(void);
FOVEAL_API int foveal_target_get(size_t index, foveal_target* target);

/* Context parallelism: one attention whose tokens are distributed over several ranks, as in foveal/dist.h.
 *
 * Every rank creates a context from the same description and the sizes of the whole problem; foveal_context_tokens() tells which rows of the
 * whole tensors are its own. Creating a context and running it are collective: all ranks call them, in the same order. If the ranks' arguments
 * differ, all get the same error. If one rank fails, or a wait exceeds its time limit, the others get FOVEAL_COMMUNICATION. */
typedef struct foveal_ranks foveal_ranks; /* this rank and its connection to the others */
typedef struct foveal_context foveal_context;

typedef struct foveal_message {
  int32_t peer;
  int32_t reserved;
  void* data; /* host memory */
  size_t bytes;
} foveal_message;

/* The caller's network. Functions return 0, or a code that the error message repeats. They are called from one thread at a time. */
typedef struct foveal_network {
  size_t struct_size;
  void* user;
  int32_t rank, size;
  /* Starts nonblocking messages, none of them to this rank itself. Their memory stays valid until wait(). Messages between two ranks arrive
   * in the order in which they were started. */
  int (*start)(void* user, const foveal_message* sends, size_t send_count, const foveal_message* receives, size_t receive_count,
               uint64_t* ticket);
  int (*wait)(void* user, uint64_t ticket);  /* returns when all messages of the ticket are complete; called once per ticket */
  void (*fail)(void* user, const char* why); /* may be null: this rank has failed, and waits of the others must end */
} foveal_network;

/* The ranks of an MPI communicator, given by its Fortran handle (MPI_Comm_c2f()), or of MPI_COMM_WORLD, initialising MPI if necessary. Open
 * MPI, loaded at run time. time_limit: seconds per wait; 0: 600. */
FOVEAL_API int foveal_ranks_mpi(int32_t fortran_communicator, double time_limit, foveal_ranks** ranks);
FOVEAL_API int foveal_ranks_mpi_world(double time_limit, foveal_ranks** ranks);
/* Over the caller's network, which is copied; `user` must outlive the ranks and their contexts. start and wait may be null for one rank. */
FOVEAL_API int foveal_ranks_of(const foveal_network* network, foveal_ranks** ranks);
FOVEAL_API int32_t foveal_ranks_rank(const foveal_ranks* ranks);
FOVEAL_API int32_t foveal_ranks_size(const foveal_ranks* ranks);
/* Contexts created from it stay valid. */
FOVEAL_API void foveal_ranks_destroy(foveal_ranks* ranks);

typedef struct foveal_context_options {
  size_t struct_size;
  const char* deal;              /* distribution of tokens: contiguous, zigzag, pieces; null: the fastest by prediction */
  const char* machine;           /* interconnect assumed by predictions: nvlink, network; null: nvlink */
  int64_t unit;                  /* chunks are multiples of this many tokens, except at the end of a sequence; 0: 128 */
  int32_t head_groups;           /* groups that the heads are split into; 0: chosen by prediction */
  int32_t remote_steps;          /* steps in which keys of other ranks are gathered; 0: chosen by prediction */
  const foveal_options* compute; /* how a rank computes; null: defaults */
} foveal_context_options;

/* Collective. whole: the call as one device would make it. Sizes and dtypes count; data are needed only for parameters (the same on every rank)
 * and for cu_seqlens of packed sequences, in host memory. Outputs may be null. Release *context with foveal_context_destroy(). */
FOVEAL_API int foveal_context_create(const foveal_ranks* ranks, const foveal_attention* attention, const foveal_call* whole,
                                     const foveal_context_options* options, foveal_context** context);
FOVEAL_API void foveal_context_destroy(foveal_context* context);
/* The token of the whole problem in each row of a rank's q, out, dq and so on (of_keys 0), or of its k and v (of_keys 1); packed sequences are
 * numbered one after the other. Returns the count, or -1 for an error, and writes the tokens unless `tokens` is null. rank -1: this rank. */
FOVEAL_API int64_t foveal_context_tokens(const foveal_context* context, int32_t rank, int32_t of_keys, int64_t* tokens);
/* Tokens, work, traffic and predicted time of every rank, written as by foveal_plan_explain(). */
FOVEAL_API size_t foveal_context_explain(const foveal_context* context, char* text, size_t size);
/* Optional, before the first forward run: a backward run will follow, with gradients of these parameters, by name, and with dlse (1) or without
 * (0). On a GPU its kernels are compiled beside those of the forward run. Another backward run is as right, and compiles its own. */
FOVEAL_API int foveal_context_backward_follows(foveal_context* context, const char* const* trained, size_t trained_count, int32_t dlse);
/* Collective. Tensors hold this rank's rows; parameters and their gradients are whole. cu_seqlens are null. */
FOVEAL_API int foveal_context_run(foveal_context* context, const foveal_call* call, void* stream);

/* CPU threads of calls that name none, for the whole process; 0: as many as the process may use. At most 4096. */
FOVEAL_API int foveal_set_num_threads(int32_t threads);
FOVEAL_API int32_t foveal_num_threads(void);

/* The message of this thread's last failed call, or "". Valid until the thread's next failed call. */
FOVEAL_API const char* foveal_last_error(void);
/* "MAJOR.MINOR.PATCH". */
FOVEAL_API const char* foveal_version(void);

#ifdef __cplusplus
}
#endif
#endif
