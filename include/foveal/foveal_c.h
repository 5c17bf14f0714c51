#ifndef FOVEAL_C_H
#define FOVEAL_C_H
/* The C interface: plan, run, explain, targets, errors. C11, no dependencies; callable from Rust, Julia, ctypes and the like.
 *
 * Every struct that may grow begins with its own size: set it with FOVEAL_INIT (or by hand) after zeroing the rest; zero means default
 * everywhere. A size must be that of a version of the struct, from the first to this library's. Functions return FOVEAL_OK or an error
 * code; foveal_last_error() then gives the message of this thread. Nothing prints, nothing exits. */
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
  FOVEAL_INTERNAL = 6 /* an exception that is none of foveal's: out of memory, say */
};

/* A tensor whose dtype was forgotten is refused: 0 is none. */
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
#define FOVEAL_INIT(type) ((type){.struct_size = sizeof(type)})

/* A strided view of the caller's memory; strides are in elements. foveal_contiguous() and foveal_packed_qkv() fill one. */
typedef struct foveal_tensor {
  void* data;
  int32_t dtype;        /* FOVEAL_F32, ... */
  int32_t device_kind;  /* FOVEAL_CPU or FOVEAL_CUDA */
  int32_t device_index; /* -1: the device of this thread's CUDA context */
  int32_t rank;
  int64_t sizes[FOVEAL_MAX_RANK];
  int64_t strides[FOVEAL_MAX_RANK];
} foveal_tensor;

/* What to compute. Expressions are text, as foveal::parse reads them; null means absent. */
typedef struct foveal_attention {
  size_t struct_size;
  const char* score_mod;
  const char* mask;
  const char* sink; /* name of the parameter that is the sink */
  double scale;     /* 0: 1 / sqrt(head_dim) */
  double dropout_p;
  uint64_t reserved_seed, reserved_offset; /* of dropout, before calls had them: 0, or those of a call of the first version */
  int64_t q_offset;
  int64_t kv_offset;
  int32_t determinism;
  int32_t backward; /* strategy */
  int32_t checked;
  int32_t
      accumulate; /* backward: 1 adds dq, dk, dv and the gradients of parameters to what is there; else they are overwritten. On the CPU */
} foveal_attention;

/* A parameter, its data, and where its gradient goes (null: not wanted). */
typedef struct foveal_param {
  const char* declaration; /* "rel: real[4, 33]"; read when planning only, afterwards parameters go by their order */
  const foveal_tensor* tensor;
  const foveal_tensor* gradient;
} foveal_param;

/* The tensors of one call; null means absent. Any strides; sizes:
 *
 *   q             [batch, seqlen_q, heads_q, head_dim]          packed sequences:  [total_q, heads_q, head_dim]
 *   k             [batch, seqlen_kv, heads_kv, head_dim]                           [total_kv, heads_kv, head_dim]
 *   v             [batch, seqlen_kv, heads_kv, head_dim_v]                         [total_kv, heads_kv, head_dim_v]
 *   out, dout     [batch, seqlen_q, heads_q, head_dim_v]                           [total_q, heads_q, head_dim_v]
 *   lse, dlse     [batch, heads_q, seqlen_q], F32 (F64 for F64 inputs)             [heads_q, total_q]
 *   dq, dk, dv    as q, k, v                                                       as q, k, v
 *   cu_seqlens    none                                                             I32 or I64 [batch + 1]: 0, then cumulative lengths
 *
 * Paged keys and values, with queries of either form: k, v, dk, dv are pools [pages, page_size, heads_kv, dim], page_size a multiple of 16;
 * block_table is I32 [batch, pages of the longest sequence], the page that holds keys i * page_size and on of each sequence; seqlens_kv is
 * I32 or I64 [batch], how many keys each has; cu_seqlens_kv is null. Sequences may share pages.
 *
 * Rules. q, k, v, out, dout, dq, dk, dv have one dtype (F64, F32, BF16, F16), and all tensors lie on one device. heads_q is a multiple of
 * heads_kv; query head h reads kv head h / (heads_q / heads_kv). lse is the natural logarithm of the softmax's denominator; forward may
 * leave it out, backward needs what forward wrote. dq, dk, dv and the gradients of parameters are each optional. Outputs may not overlap
 * each other or an input. Forward leaves dout to dv null. */
typedef struct foveal_call {
  size_t struct_size;
  int32_t pass;
  int32_t param_count;
  const foveal_param* params;
  const foveal_tensor *q, *k, *v;
  const foveal_tensor *out, *lse;                    /* forward: written; backward: read */
  const foveal_tensor *dout, *dlse;                  /* backward only */
  const foveal_tensor *dq, *dk, *dv;                 /* backward only */
  const foveal_tensor *cu_seqlens_q, *cu_seqlens_kv; /* both: packed sequences */
  int64_t max_seqlen_q, max_seqlen_kv;
  /* From here on: not in the first version. */
  uint64_t dropout_seed, dropout_offset; /* which pairs this run drops */
  const foveal_tensor* dropout_state;    /* instead of the two: i64 [2] of their bits on q's device, read when the kernels run */
  /* From here on: not in the second version. */
  const foveal_tensor *block_table, *seqlens_kv; /* both: paged keys and values */
} foveal_call;

typedef struct foveal_options {
  size_t struct_size;
  const char* backend; /* null: the first that can */
  const char* target;
  int32_t threads; /* 0: all */
  int32_t reserved;
  const char* exclude; /* not in the first version: back ends that must not be chosen, with commas between */
} foveal_options;

typedef struct foveal_target {
  const char* backend; /* strings live as long as the process */
  const char* target;
  const char* detail;
  int32_t available;
  int32_t reserved;
} foveal_target;

typedef struct foveal_plan foveal_plan;

/* Plans; tensors' data may be null. options may be null. On success *plan is to be given to foveal_plan_destroy(). */
FOVEAL_API int foveal_plan_create(const foveal_attention* attention, const foveal_call* call, const foveal_options* options,
                                  foveal_plan** plan);
FOVEAL_API void foveal_plan_destroy(foveal_plan* plan);
FOVEAL_API size_t foveal_plan_workspace_bytes(const foveal_plan* plan);
FOVEAL_API const char* foveal_plan_kernel(const foveal_plan* plan);
/* Writes at most `size` bytes, the last of them 0, and returns the length of the whole text. */
FOVEAL_API size_t foveal_plan_explain(const foveal_plan* plan, char* text, size_t size);
/* workspace: foveal_plan_workspace_bytes() bytes on the plan's device, aligned to 256. From any thread, each with its own workspace. */
FOVEAL_API int foveal_plan_run(const foveal_plan* plan, const foveal_call* call, void* workspace, void* stream);

/* Plans (or finds the plan made before), takes workspace from a pool, runs. */
FOVEAL_API int foveal_run(const foveal_attention* attention, const foveal_call* call, const foveal_options* options, void* stream);

/* *tensor: contiguous, the last dimension fastest, on the CPU (set device_kind and device_index for a GPU). Refuses a rank above
 * FOVEAL_MAX_RANK and sizes below 0. */
FOVEAL_API int foveal_contiguous(foveal_tensor* tensor, void* data, int32_t dtype, int32_t rank, const int64_t* sizes);
/* qkv[0], qkv[1], qkv[2]: q, k and v [batch, seqlen, heads, channels / heads] as views of one buffer [batch, seqlen, 3 * channels], what a
 * linear layer of 3 * channels outputs writes. The same views serve dq, dk, dv. Refuses channels that heads do not divide. */
FOVEAL_API int foveal_packed_qkv(foveal_tensor qkv[3], void* data, int32_t dtype, int64_t batch, int64_t seqlen, int64_t channels,
                                 int64_t heads);

/* Rows of the table of backends and targets. */
FOVEAL_API size_t foveal_target_count(void);
FOVEAL_API int foveal_target_get(size_t index, foveal_target* target);

/* Context parallelism: one attention over tensors whose tokens are dealt to several ranks, as in foveal/dist.h.
 *
 * Every rank makes a context from the same description and the whole problem's sizes; its tensors are then the rows foveal_context_tokens()
 * of the whole ones. Creating a context and running are collective: all ranks call them, in the same order. Where ranks disagree, all of them
 * get the same error; an error of one rank, or a wait beyond the time limit, is FOVEAL_COMMUNICATION on the others. */
typedef struct foveal_ranks foveal_ranks; /* this rank, and how it reaches the others */
typedef struct foveal_context foveal_context;

typedef struct foveal_message {
  int32_t peer;
  int32_t reserved;
  void* data; /* host memory */
  size_t bytes;
} foveal_message;

/* A network of the caller's own. Functions return 0, or what is then named in the error. Calls come from one thread at a time. */
typedef struct foveal_network {
  size_t struct_size;
  void* user;
  int32_t rank, size;
  /* Starts messages, none of them to this rank itself, and returns at once; their memory stays until wait(). Between two ranks, messages
   * arrive in the order in which they were started. */
  int (*start)(void* user, const foveal_message* sends, size_t send_count, const foveal_message* receives, size_t receive_count,
               uint64_t* ticket);
  int (*wait)(void* user, uint64_t ticket);  /* until all messages of the ticket have left or arrived; once for each ticket */
  void (*fail)(void* user, const char* why); /* may be null: this rank cannot go on, and the waits of the others are to end */
} foveal_network;

/* Ranks of MPI (Open MPI, loaded at run time): of a communicator by its Fortran handle, MPI_Comm_c2f(); or all processes, where MPI is
 * initialised if it has not been. time_limit: seconds that a wait may take; 0: 600. */
FOVEAL_API int foveal_ranks_mpi(int32_t fortran_communicator, double time_limit, foveal_ranks** ranks);
FOVEAL_API int foveal_ranks_mpi_world(double time_limit, foveal_ranks** ranks);
FOVEAL_API int foveal_ranks_of(const foveal_network* network, foveal_ranks** ranks);
FOVEAL_API int32_t foveal_ranks_rank(const foveal_ranks* ranks);
FOVEAL_API int32_t foveal_ranks_size(const foveal_ranks* ranks);
/* Contexts made of it live on. */
FOVEAL_API void foveal_ranks_destroy(foveal_ranks* ranks);

typedef struct foveal_context_options {
  size_t struct_size;
  const char* deal;              /* contiguous, zigzag, pieces; null: by predicted time */
  const char* machine;           /* links that times are predicted with: nvlink, network; null: nvlink */
  int64_t unit;                  /* chunks are multiples of so many tokens, but for the end of a sequence; 0: 128 */
  int32_t head_groups;           /* shares of the heads; 0: picked */
  int32_t remote_steps;          /* steps in which keys of other ranks are gathered; 0: picked */
  const foveal_options* compute; /* how a rank computes; null: the first back end that can */
} foveal_context_options;

/* Collective. whole: the tensors of one device, of which sizes and dtypes count, not the data; but parameters have data, the same on every rank,
 * and packed sequences cu_seqlens, in host memory. Outputs may be null. On success *context is to be given to foveal_context_destroy(). */
FOVEAL_API int foveal_context_create(const foveal_ranks* ranks, const foveal_attention* attention, const foveal_call* whole,
                                     const foveal_context_options* options, foveal_context** context);
FOVEAL_API void foveal_context_destroy(foveal_context* context);
/* For each row of a rank's q (of_keys 0: out, lse, and their gradients, too) or k and v (of_keys 1): its token of the whole, packed: of all
 * sequences one after the other. Writes them where tokens is not null, and returns how many there are; -1 is an error. rank: -1 is this one. */
FOVEAL_API int64_t foveal_context_tokens(const foveal_context* context, int32_t rank, int32_t of_keys, int64_t* tokens);
/* The plan: tokens, work, bytes and predicted time of every rank. As foveal_plan_explain(). */
FOVEAL_API size_t foveal_context_explain(const foveal_context* context, char* text, size_t size);
/* Collective. The call's tensors are this rank's rows; parameters are whole, and their gradients those of the whole. cu_seqlens stay null. */
FOVEAL_API int foveal_context_run(foveal_context* context, const foveal_call* call, void* stream);

FOVEAL_API int foveal_set_num_threads(int32_t threads);
FOVEAL_API int32_t foveal_num_threads(void);

/* Of this thread's last failed call; "" when none has failed. Valid until its next failed call. */
FOVEAL_API const char* foveal_last_error(void);
FOVEAL_API const char* foveal_version(void);

#ifdef __cplusplus
}
#endif
#endif
