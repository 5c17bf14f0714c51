// A table of wrong calls: each says what is wrong in its message, with the code that goes with it, before any work starts.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "foveal/foveal.h"

namespace foveal {
namespace {

/// A right call, b2 h4:2 q8 kv6 d16:12, for a row of the table to spoil.
struct Calls {
  std::vector<float> memory = std::vector<float>(1 << 16, 0.5f);
  std::vector<std::int32_t> cu_q{0, 8, 16}, cu_kv{0, 6, 12};
  float* at(std::size_t offset) { return memory.data() + offset; }

  Attention attention{};
  PlanOptions options{};
  TensorView q{at(0), DType::f32, {2, 8, 4, 16}}, k{at(2048), DType::f32, {2, 6, 2, 16}}, v{at(3072), DType::f32, {2, 6, 2, 12}};
  TensorView out{at(4096), DType::f32, {2, 8, 4, 12}}, lse{at(6144), DType::f32, {2, 4, 8}}, dout{at(7168), DType::f32, {2, 8, 4, 12}},
      dlse{};
  TensorView dq{at(9216), DType::f32, {2, 8, 4, 16}}, dk{at(12288), DType::f32, {2, 6, 2, 16}}, dv{at(14336), DType::f32, {2, 6, 2, 12}};
  std::vector<ParamBinding> params, dparams;
  std::optional<Varlen> varlen;
  std::optional<Paged> paged;

  const Param rel{"rel", {4, 17}}, table{"table", {8}}, ids{"ids", {8}, Type::integer}, keep{"keep", {8}, Type::boolean}, sink{"sink", {4}};
  TensorView rel_data{at(20000), DType::f32, {4, 17}}, table_data{at(21000), DType::f32, {8}}, sink_data{at(22000), DType::f32, {4}};

  ForwardInputs forward_inputs() const { return {.q = q, .k = k, .v = v, .params = params, .varlen = varlen, .paged = paged}; }
  ForwardOutputs forward_outputs() const { return {.out = out, .lse = lse}; }
  BackwardInputs backward_inputs() const {
    return {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse, .params = params, .varlen = varlen, .paged = paged};
  }
  BackwardOutputs backward_outputs() const { return {.dq = dq, .dk = dk, .dv = dv, .dparams = dparams}; }

  void forward() { foveal::forward(attention, forward_inputs(), forward_outputs(), {}, options); }
  void backward() { foveal::backward(attention, backward_inputs(), backward_outputs(), {}, options); }

  /// Keys and values in four pages of 16, two for each sequence.
  void page() {
    static std::vector<float> pools(std::size_t{4} * 4 * 16 * 2 * 16);
    const auto pool = [](std::int64_t which, std::int64_t dim) {
      return TensorView(pools.data() + which * 4 * 16 * 2 * 16, DType::f32, {4, 16, 2, dim});
    };
    k = pool(0, 16), v = pool(1, 12), dk = pool(2, 16), dv = pool(3, 12);
    paged = Paged{.block_table = {pages.data(), DType::i32, {2, 2}}, .seqlens_kv = {lengths_kv.data(), DType::i32, {2}}};
  }
  std::vector<std::int32_t> pages{3, 0, 2, 1}, lengths_kv{20, 32};

  /// The same tensors as a packed batch of two sequences.
  void pack() {
    q = {at(0), DType::f32, {16, 4, 16}}, k = {at(2048), DType::f32, {12, 2, 16}}, v = {at(3072), DType::f32, {12, 2, 12}};
    out = {at(4096), DType::f32, {16, 4, 12}}, lse = {at(6144), DType::f32, {4, 16}};
    varlen = Varlen{.cu_seqlens_q = {cu_q.data(), DType::i32, {3}},
                    .cu_seqlens_kv = {cu_kv.data(), DType::i32, {3}},
                    .max_seqlen_q = 8,
                    .max_seqlen_kv = 6};
  }
};

struct Row {
  const char* name;
  std::function<void(Calls&)> call;
  const char* message;  ///< a part of it
  ErrorCode code = ErrorCode::invalid_argument;
};

using namespace symbols;

const std::vector<Row> rows{
    // values that are no enumerators
    {"NoDType", [](Calls& c) { c.k.dtype = static_cast<DType>(99), c.forward(); },
     "dtype of k: enumerator 99; expected f64, f32, bf16, f16, i64, i32, i16, i8, u8 or boolean"},
    {"NoDTypeOfAParameter",
     [](Calls& c) {
       c.table_data.dtype = static_cast<DType>(10), c.params = {{c.table, c.table_data}};
       c.attention.score_mod = score + c.table(q_idx), c.forward();
     },
     "dtype of parameter table: enumerator 10; expected"},
    {"NoDeviceKind",
     [](Calls& c) {
       for (TensorView* view : {&c.q, &c.k, &c.v, &c.out, &c.lse}) view->device.kind = static_cast<DeviceKind>(2);
       c.forward();
     },
     "q: device kind 2; expected DeviceKind::cpu or DeviceKind::cuda"},
    {"NoDeterminism", [](Calls& c) { c.attention.determinism = static_cast<Determinism>(2), c.forward(); },
     "determinism: enumerator 2; expected fast or reproducible"},
    {"NoStrategy", [](Calls& c) { c.attention.backward = static_cast<BackwardStrategy>(9), c.backward(); },
     "backward: enumerator 9; expected automatic, fused, split or two_scan"},
    {"NoPass", [](Calls& c) { plan(c.attention, Shapes{}, static_cast<Pass>(2)); }, "pass: enumerator 2; expected forward or backward"},
    {"NoDTypeOfShapes", [](Calls& c) { plan(c.attention, {.dtype = static_cast<DType>(77)}, Pass::forward); }, "dtype of q: enumerator 77"},
    {"NoType", [](Calls&) { Param("p", {2}, static_cast<Type>(3)); }, "type of Param p: enumerator 3; expected boolean, integer or real"},
    // tensors
    {"QAbsent", [](Calls& c) { c.q = {}, c.forward(); }, "q: absent; expected [batch, seqlen_q, heads_q, head_dim]"},
    {"KAbsent", [](Calls& c) { c.k = {}, c.forward(); }, "k: absent; expected [batch, seqlen_kv, heads_kv, head_dim]"},
    {"OutAbsent", [](Calls& c) { c.out = {}, c.forward(); }, "out: absent; expected [batch, seqlen_q, heads_q, head_dim_v]"},
    {"QRank",
     [](Calls& c) {
       c.q = {c.at(0), DType::f32, {8, 4, 16}}, c.forward();
     },
     "q: rank 3; expected 4 [batch, seqlen_q, heads_q, head_dim]"},
    {"QRankBeyondAnyTensor", [](Calls& c) { c.q.rank = 1 << 30, c.forward(); }, "q: rank 1073741824; expected 0 to 6"},
    {"KRankNegative", [](Calls& c) { c.k.rank = -1, c.forward(); }, "k: rank -1; expected 0 to 6"},
    {"ParamRankBeyondAnyTensor",
     [](Calls& c) {
       c.table_data.rank = 1 << 30, c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}}, c.forward();
     },
     "table: rank 1073741824; expected 0 to 6"},
    {"LseRank",
     [](Calls& c) {
       c.lse = {c.at(6144), DType::f32, {64}}, c.forward();
     },
     "lse: rank 1; expected 3 [batch, heads_q, seqlen_q]"},
    {"QEmpty",
     [](Calls& c) {
       c.q = {c.at(0), DType::f32, {2, 0, 4, 16}}, c.forward();
     },
     "q: size 0 in dimension 1; expected at least 1"},
    {"QIntegers", [](Calls& c) { c.q.dtype = DType::i32, c.forward(); }, "q: dtype i32; expected f64, f32, bf16 or f16"},
    {"KOtherType", [](Calls& c) { c.k.dtype = DType::bf16, c.forward(); }, "k: dtype bf16; expected f32, q's"},
    {"VOtherType", [](Calls& c) { c.v.dtype = DType::f16, c.forward(); }, "v: dtype f16; expected f32, q's"},
    {"OutOtherType", [](Calls& c) { c.out.dtype = DType::f64, c.forward(); }, "out: dtype f64; expected f32, q's"},
    {"LseOtherType", [](Calls& c) { c.lse.dtype = DType::bf16, c.forward(); },
     "lse: dtype bf16; expected f32, the type of statistics for these inputs"},
    {"KBatch", [](Calls& c) { c.k.sizes[0] = 1, c.forward(); }, "k: batch 1 differs from q's 2 [forward f32 b2 h4:2 q8:6 d16"},
    {"VBatch", [](Calls& c) { c.v.sizes[0] = 3, c.forward(); }, "v: batch 3 differs from q's 2"},
    {"GroupRatio", [](Calls& c) { c.k.sizes[2] = c.v.sizes[2] = 3, c.forward(); },
     "k: heads 3 does not divide q's 4; expected a divisor of 4 [forward f32 b2 h4:3"},
    {"MoreKvHeads", [](Calls& c) { c.k.sizes[2] = c.v.sizes[2] = 8, c.forward(); }, "k: heads 8 does not divide q's 4"},
    {"KHeadDim", [](Calls& c) { c.k.sizes[3] = 8, c.forward(); }, "k: head_dim 8 differs from q's 16"},
    {"VHeads", [](Calls& c) { c.v.sizes[2] = 4, c.forward(); }, "v: heads 4 differs from k's 2"},
    {"VLength", [](Calls& c) { c.v.sizes[1] = 5, c.forward(); }, "v: seqlen 5 differs from k's 6"},
    {"OutShape", [](Calls& c) { c.out.sizes[3] = 16, c.forward(); }, "out: shape [2, 8, 4, 16]; expected [2, 8, 4, 12]"},
    {"LseShape",
     [](Calls& c) {
       c.lse = {c.at(6144), DType::f32, {2, 8, 4}}, c.forward();
     },
     "lse: shape [2, 8, 4]; expected [2, 4, 8]"},
    {"OtherDevice",
     [](Calls& c) {
       c.v.device = {DeviceKind::cuda, 0}, c.forward();
     },
     "v: on another device than q"},
    {"NullData", [](Calls& c) { c.k.data = nullptr, c.forward(); }, "k: data is null [forward f32"},
    {"Misaligned", [](Calls& c) { c.q.data = reinterpret_cast<char*>(c.at(0)) + 2, c.forward(); },
     "q: address is not a multiple of 4, the size of f32"},
    {"TooManySizes",
     [](Calls&) {
       TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1});
     },
     "sizes: 7 of them; expected at most 6"},
    {"NegativeSize",
     [](Calls&) {
       TensorView(nullptr, DType::f32, {2, -3});
     },
     "sizes: -3 in dimension 1; expected 0 or more"},
    {"StrideCount",
     [](Calls&) {
       TensorView(nullptr, DType::f32, {2, 3}, {1});
     },
     "strides: 1 of them; expected 2, one for each size"},
    // outputs in memory
    {"OutputStrideZero", [](Calls& c) { c.out.strides[0] = 0, c.forward(); }, "out: strides [0, 48, 12, 1] put two elements in one place"},
    {"OutputSelfOverlap", [](Calls& c) { c.out.strides[1] = 12, c.forward(); },
     "out: strides [384, 12, 12, 1] put two elements in one place"},
    {"OutOverQ", [](Calls& c) { c.out.data = c.at(100), c.forward(); }, "out: overlaps q in memory; expected a place of its own"},
    {"OutOverLse", [](Calls& c) { c.lse.data = c.at(4200), c.forward(); }, "out: overlaps lse in memory"},
    {"DqOverQ", [](Calls& c) { c.dq = c.q, c.backward(); }, "dq: overlaps q in memory"},
    {"DkOverDv", [](Calls& c) { c.dv.data = c.at(12300), c.backward(); }, "dk: overlaps dv in memory"},
    {"DqOverDout", [](Calls& c) { c.dq.data = c.dout.data, c.backward(); }, "dq: overlaps dout in memory"},
    // backward
    {"LseNeeded", [](Calls& c) { c.lse = {}, c.backward(); }, "lse: absent; expected [batch, heads_q, seqlen_q] [backward f32"},
    {"DoutNeeded", [](Calls& c) { c.dout = {}, c.backward(); }, "dout: absent; expected [batch, seqlen_q, heads_q, head_dim_v]"},
    {"DoutShape", [](Calls& c) { c.dout.sizes[1] = 7, c.backward(); }, "dout: shape [2, 7, 4, 12]; expected [2, 8, 4, 12]"},
    {"DlseType", [](Calls& c) { c.dlse = c.lse, c.dlse.dtype = DType::f64, c.backward(); }, "dlse: dtype f64; expected f32"},
    {"DqShape", [](Calls& c) { c.dq.sizes[3] = 12, c.backward(); }, "dq: shape [2, 8, 4, 12]; expected [2, 8, 4, 16]"},
    {"DkShape", [](Calls& c) { c.dk.sizes[2] = 4, c.backward(); }, "dk: shape [2, 6, 4, 16]; expected [2, 6, 2, 16]"},
    {"DvType", [](Calls& c) { c.dv.dtype = DType::f64, c.backward(); }, "dv: dtype f64; expected f32, q's"},
    {"NothingWanted", [](Calls& c) { c.dq = c.dk = c.dv = {}, c.backward(); },
     "outputs: no gradient is asked for; expected at least one of dq, dk, dv and gradients of parameters"},
    // attention
    {"DropoutOne", [](Calls& c) { c.attention.dropout_p = 1, c.forward(); }, "dropout_p: 1; expected 0 <= p < 1"},
    {"DropoutNegative", [](Calls& c) { c.attention.dropout_p = -0.1, c.forward(); }, "dropout_p: -0.1; expected 0 <= p < 1"},
    {"DropoutNan", [](Calls& c) { c.attention.dropout_p = std::nan(""), c.forward(); }, "dropout_p: nan; expected 0 <= p < 1"},
    {"ScaleInfinite", [](Calls& c) { c.attention.scale = std::numeric_limits<double>::infinity(), c.forward(); },
     "scale: inf; expected a finite number"},
    {"ScaleBeyondFloats", [](Calls& c) { c.attention.scale = -1e39, c.forward(); },
     "scale: -1e+39; expected at most 3.40282e+38 for f32, whose scores are f32"},
    {"OffsetNegative", [](Calls& c) { c.attention.q_offset = -1, c.forward(); }, "q_offset: -1; expected 0 or more"},
    {"OffsetTooFar", [](Calls& c) { c.attention.kv_offset = 2147483645, c.forward(); },
     "k: last position 2147483645 + 6; expected at most 2147483647"},
    // scores, masks, parameters
    {"MaskNotBoolean", [](Calls& c) { c.attention.mask = kv_idx - q_idx, c.forward(); },
     "mask: the expression is integer; expected boolean"},
    {"MaskReadsScore", [](Calls& c) { c.attention.mask = score > 0.0, c.forward(); }, "mask: it reads score"},
    {"ScoreBoolean", [](Calls& c) { c.attention.score_mod = kv_idx < q_idx, c.forward(); },
     "score_mod: the expression is boolean; expected real"},
    {"Unbound", [](Calls& c) { c.attention.score_mod = score + c.rel(head, kv_idx), c.forward(); },
     "parameter rel: read by the score or the mask but not bound; expected a binding of rel: real[4, 17] in params [forward f32"},
    {"BoundTwice",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}, {c.table, c.table_data}}, c.forward();
     },
     "parameter table: bound twice"},
    {"ParamShape",
     [](Calls& c) {
       c.attention.score_mod = score + c.rel(head, kv_idx), c.params = {{c.rel, c.table_data}}, c.forward();
     },
     "parameter rel: shape [8]; expected [4, 17] as declared"},
    {"ParamType",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx), c.table_data.dtype = DType::i32, c.params = {{c.table, c.table_data}}, c.forward();
     },
     "parameter table: dtype i32; expected f64, f32, bf16 or f16 for a parameter of type real"},
    {"IntegerParamType",
     [](Calls& c) {
       c.attention.mask = c.ids(q_idx) == c.ids(kv_idx), c.params = {{c.ids, c.table_data}}, c.forward();
     },
     "parameter ids: dtype f32; expected i64, i32, i16, i8 or u8 for a parameter of type integer"},
    {"BooleanParamType",
     [](Calls& c) {
       c.attention.mask = c.keep(kv_idx), c.params = {{c.keep, c.table_data}}, c.forward();
     },
     "parameter keep: dtype f32; expected boolean or u8"},
    {"ParamDevice",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx), c.table_data.device.kind = DeviceKind::cuda, c.params = {{c.table, c.table_data}},
       c.forward();
     },
     "parameter table: on another device than q"},
    {"EmptyBinding",
     [](Calls& c) {
       c.params = {{Param(), c.table_data}}, c.forward();
     },
     "params: a binding without a parameter"},
    {"GradientOfUnbound",
     [](Calls& c) {
       c.dparams = {{c.table, c.table_data}}, c.backward();
     },
     "gradient of parameter table: the parameter is not bound in params"},
    {"GradientOfInteger",
     [](Calls& c) {
       TensorView ids(c.cu_q.data(), DType::i32, {8});
       c.attention.score_mod = score + c.ids(kv_idx), c.params = {{c.ids, ids}}, c.dparams = {{c.ids, c.table_data}}, c.backward();
     },
     "gradient of parameter ids: a parameter of type integer has no gradient; expected a real one"},
    {"GradientOfUnread",
     [](Calls& c) {
       TensorView gradient(c.at(23000), DType::f32, {8});
       c.params = {{c.table, c.table_data}}, c.dparams = {{c.table, gradient}}, c.backward();
     },
     "parameter table: a gradient is wanted but neither score_mod nor mask reads it"},
    {"GradientShape",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}}, c.dparams = {{c.table, c.sink_data}},
       c.backward();
     },
     "gradient of parameter table: shape [4]; expected [8] as declared"},
    {"GradientType",
     [](Calls& c) {
       TensorView gradient(c.at(23000), DType::f16, {8});
       c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}}, c.dparams = {{c.table, gradient}},
       c.backward();
     },
     "gradient of parameter table: dtype f16; expected f32, f64 or the parameter's own f32"},
    {"GradientTwice",
     [](Calls& c) {
       TensorView gradient(c.at(23000), DType::f32, {8});
       c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}},
       c.dparams = {{c.table, gradient}, {c.table, gradient}}, c.backward();
     },
     "gradient of parameter table: wanted twice"},
    {"GradientOverParam",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx), c.params = {{c.table, c.table_data}}, c.dparams = {{c.table, c.table_data}},
       c.backward();
     },
     "gradient of table: overlaps table in memory"},
    {"CheckedIndex",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx + c.ids(q_idx)), c.attention.checked = true;
       static std::vector<std::int32_t> far(8, 5);
       c.params = {{c.table, c.table_data}, {c.ids, {far.data(), DType::i32, {8}}}}, c.options.backend = "reference", c.forward();
     },
     "parameter table: index 8 in dimension 0 at batch 0, head 0, q_idx 0, kv_idx 3; expected 0 to 7"},
    {"CheckedIndexBackward",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx + c.ids(q_idx)), c.attention.checked = true;
       static std::vector<std::int32_t> far(8, 5);
       c.params = {{c.table, c.table_data}, {c.ids, {far.data(), DType::i32, {8}}}}, c.options.backend = "cpu", c.backward();
     },
     "parameter table: index 8 in dimension 0 at batch 0, head 0, q_idx 0, kv_idx 3; expected 0 to 7"},
    {"CheckedIndexOfMaskBackward",
     [](Calls& c) {
       static std::vector<std::int32_t> far(4, 0);
       const Param few("few", {4}, Type::integer);
       c.attention.mask = document(few), c.attention.checked = true;
       c.params = {{few, {far.data(), DType::i32, {4}}}}, c.options.backend = "cpu", c.backward();
     },
     "parameter few: index 4 in dimension 0 at batch 0, head 0, q_idx 4, kv_idx 0; expected 0 to 3"},
    {"IndexOutsideAtEveryPair",
     [](Calls& c) {
       c.attention.score_mod = score + c.table(kv_idx + 8), c.params = {{c.table, c.table_data}}, c.forward();
     },
     "score_mod: parameter table: index 0 is 8 to 13, outside at every pair; expected 0 to 7"},
    {"IndexOutsideAtEveryKeptPair",
     [](Calls& c) {
       c.attention.mask = kv_idx < q_idx;
       c.attention.score_mod = score + c.table(kv_idx - q_idx), c.params = {{c.table, c.table_data}}, c.forward();
     },
     "score_mod: parameter table: index 0 is -7 to -1, outside at every pair; expected 0 to 7"},
    {"IntegerBeyond64Bits",
     [](Calls& c) { c.attention.score_mod = score + 3000000000 * (q_idx * 3000000000) * (kv_idx + 1) * (q_idx + 1), c.forward(); },
     "expected integers of 64 bits (compute it in reals with to_real)"},
    {"SinkWithoutNameAfterACallWithoutSink", [](Calls& c) { c.forward(), c.attention.sink = Param{}, c.forward(); },
     "sink: a Param without a name"},
    {"SinkUnbound", [](Calls& c) { c.attention.sink = c.sink, c.forward(); }, "sink: parameter sink is not bound in params"},
    {"SinkShape",
     [](Calls& c) {
       c.attention.sink = c.table, c.params = {{c.table, c.table_data}}, c.forward();
     },
     "sink: parameter table has shape [8]; expected [4], one logit per query head"},
    {"SinkInteger", [](Calls& c) { c.attention.sink = Param("s", {4}, Type::integer), c.forward(); },
     "sink: parameter s is integer; expected real"},
    {"SinkReadToo",
     [](Calls& c) {
       TensorView gradient(c.at(23000), DType::f32, {4});
       c.attention.sink = c.sink, c.attention.score_mod = score * c.sink(head), c.params = {{c.sink, c.sink_data}},
       c.dparams = {{c.sink, gradient}}, c.backward();
     },
     "sink: parameter sink is read by score_mod too and its gradient is wanted; use two parameters"},
    {"ReadArity", [](Calls& c) { c.rel(head); }, "parameter rel: read with 1 indices; expected 2"},
    {"ReadRealIndex", [](Calls& c) { c.table(score); }, "parameter table: index 0 is real; expected integer"},
    {"ParamName", [](Calls&) { Param("2x", {3}); },
     "Param: name \"2x\" is no identifier; expected a letter or _, then letters, digits or _"},
    {"ParamReserved", [](Calls&) { Param("kv_idx", {3}); },
     "Param: name \"kv_idx\" is a symbol, function or keyword of the score language"},
    {"ParamSize",
     [](Calls&) {
       Param("x", {3, 0});
     },
     "Param x: a size is 0; expected positive sizes"},
    {"Unparsable", [](Calls&) { parse("score + * 2"); }, "line 1, column 9: expected a value, found \"*\"\n  score + * 2\n          ^"},
    {"UnknownName", [](Calls&) { parse("score + bias[0]"); },
     "column 9: unknown name \"bias\"; expected a symbol, a function, a named mask or one of the parameters (there are none)\n  score + "
     "bias[0]\n          ^"},
    {"Unclosed", [](Calls&) { parse("tanh(score"); },
     "column 11: expected \")\" to close the arguments of tanh, found the end of the text\n  tanh(score\n            ^"},
    {"AbsentType", [](Calls&) { Expr().type(); }, "Expr: absent, it has no type"},
    // packed sequences
    {"PackedRank",
     [](Calls& c) {
       c.pack(), c.q = {c.at(0), DType::f32, {2, 8, 4, 16}}, c.forward();
     },
     "q: rank 4; expected 3 [total_q, heads_q, head_dim]"},
    {"CuAbsent", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_kv = {}, c.forward(); },
     "cu_seqlens_kv: absent; expected i32 or i64 [batch + 1]"},
    {"CuType", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_q.dtype = DType::f32, c.forward(); },
     "cu_seqlens_q: dtype f32; expected i32 or i64"},
    {"CuTypesDiffer", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_kv.dtype = DType::i64, c.forward(); },
     "cu_seqlens_kv: dtype i64; expected i32, cu_seqlens_q's"},
    {"CuRank",
     [](Calls& c) {
       c.pack(), c.varlen->cu_seqlens_q = {c.cu_q.data(), DType::i32, {3, 1}}, c.forward();
     },
     "cu_seqlens_q: rank 2; expected 1 [batch + 1]"},
    {"CuShort", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_q.sizes[0] = 1, c.forward(); },
     "cu_seqlens_q: size 1; expected batch + 1, at least 2"},
    {"CuStride", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_q.strides[0] = 2, c.forward(); }, "cu_seqlens_q: stride 2; expected 1"},
    {"CuSizesDiffer", [](Calls& c) { c.pack(), c.varlen->cu_seqlens_kv.sizes[0] = 2, c.forward(); },
     "cu_seqlens_kv: size 2; expected 3, cu_seqlens_q's"},
    {"CuStart", [](Calls& c) { c.pack(), c.cu_q[0] = 1, c.forward(); }, "cu_seqlens_q: starts with 1; expected 0"},
    {"CuDecreases", [](Calls& c) { c.pack(), c.cu_kv[1] = 13, c.forward(); }, "cu_seqlens_kv: decreases from 13 to 12 at 2"},
    {"CuEnd", [](Calls& c) { c.pack(), c.cu_q[2] = 15, c.forward(); }, "cu_seqlens_q: ends with 15; expected the total 16"},
    {"MaxTooSmall", [](Calls& c) { c.pack(), c.varlen->max_seqlen_kv = 5, c.forward(); },
     "max_seqlen_kv: 5 is less than the longest sequence, 6"},
    {"MaxNegative", [](Calls& c) { c.pack(), c.varlen->max_seqlen_q = -1, c.forward(); },
     "max_seqlen_q: -1; expected a length, or 0 to find out"},
    {"PackedTotals", [](Calls& c) { c.pack(), c.v.sizes[0] = 11, c.forward(); }, "v: total 11 differs from k's 12"},
    // keys and values in pages
    {"PagedRank",
     [](Calls& c) {
       c.page(), c.k = {c.at(2048), DType::f32, {16, 2, 16}}, c.forward();
     },
     "k: rank 3; expected 4 [pages, page_size, heads_kv, head_dim]"},
    {"PageSize", [](Calls& c) { c.page(), c.k.sizes[1] = 8, c.forward(); }, "k: page_size 8 in dimension 1; expected a multiple of 16"},
    {"PagesDiffer", [](Calls& c) { c.page(), c.v.sizes[0] = 3, c.forward(); }, "v: pages 3 differ from k's 4"},
    {"PageSizesDiffer", [](Calls& c) { c.page(), c.v.sizes[1] = 32, c.forward(); }, "v: page_size 32 differs from k's 16"},
    {"PagedGradient", [](Calls& c) { c.page(), c.dk.sizes[0] = 2, c.backward(); }, "dk: shape [2, 16, 2, 16]; expected [4, 16, 2, 16]"},
    {"TableAbsent", [](Calls& c) { c.page(), c.paged->block_table = {}, c.forward(); },
     "block_table: absent beside seqlens_kv; expected i32 [batch, pages of the longest sequence]"},
    {"TableType", [](Calls& c) { c.page(), c.paged->block_table.dtype = DType::i64, c.forward(); }, "block_table: dtype i64; expected i32"},
    {"TableRank",
     [](Calls& c) {
       c.page(), c.paged->block_table = {c.pages.data(), DType::i32, {4}}, c.forward();
     },
     "block_table: rank 1; expected i32 [batch, pages of the longest sequence]"},
    {"TableRows", [](Calls& c) { c.page(), c.paged->block_table.sizes[0] = 1, c.forward(); },
     "block_table: 1 rows; expected 2, one for each sequence"},
    {"TableEmpty", [](Calls& c) { c.page(), c.paged->block_table.sizes[1] = 0, c.forward(); },
     "block_table: rows of 0 pages; expected at least 1"},
    {"TableTooWide",
     [](Calls& c) {
       c.page(), c.paged->block_table.sizes[1] = std::int64_t{1} << 30, c.paged->block_table.strides = {0, 0}, c.forward();
     },
     "block_table: rows of 1073741824 pages of 16 keys; expected at most 2147483647 keys"},
    {"TableDevice",
     [](Calls& c) {
       c.page(), c.paged->block_table.device = {DeviceKind::cuda, 0}, c.forward();
     },
     "block_table: on another device than q"},
    {"LengthsAbsent", [](Calls& c) { c.page(), c.paged->seqlens_kv = {}, c.forward(); },
     "seqlens_kv: absent beside block_table; expected i32 or i64 [batch], how many keys each sequence has"},
    {"LengthsType", [](Calls& c) { c.page(), c.paged->seqlens_kv.dtype = DType::f32, c.forward(); },
     "seqlens_kv: dtype f32; expected i32 or i64"},
    {"LengthsShape", [](Calls& c) { c.page(), c.paged->seqlens_kv.sizes[0] = 1, c.forward(); },
     "seqlens_kv: shape [1]; expected [2], one length for each sequence"},
    {"LengthBeyond", [](Calls& c) { c.page(), c.lengths_kv[1] = 33, c.forward(); },
     "seqlens_kv: 33 of sequence 1; expected 0 to 32, what a row of block_table holds"},
    {"LengthNegative", [](Calls& c) { c.page(), c.lengths_kv[0] = -1, c.forward(); }, "seqlens_kv: -1 of sequence 0; expected 0 to 32"},
    {"PageBeyond", [](Calls& c) { c.page(), c.pages[1] = 4, c.forward(); },
     "block_table: page 4 at [0, 1]; expected 0 to 3 for the 20 keys of this sequence"},
    {"PageNegative", [](Calls& c) { c.page(), c.pages[2] = -1, c.backward(); }, "block_table: page -1 at [1, 0]; expected 0 to 3"},
    {"PagedAndPackedKeys", [](Calls& c) { c.pack(), c.page(), c.forward(); },
     "cu_seqlens_kv: given beside a block_table; expected seqlens_kv in its place"},
    {"LengthBeyondMax", [](Calls& c) { c.pack(), c.page(), c.varlen->cu_seqlens_kv = {}, c.varlen->max_seqlen_kv = 24, c.forward(); },
     "seqlens_kv: 32 of sequence 1; expected 0 to 24, max_seqlen_kv"},
    {"PagedSegments",
     [](Calls& c) {
       std::vector<std::int64_t> parts(18);
       c.pack(), c.page(), c.varlen = {};
       ForwardInputs inputs = c.forward_inputs();
       inputs.segments = Segments{.table = {parts.data(), DType::i64, {2, 9}}, .sequences = 2};
       foveal::forward(c.attention, inputs, c.forward_outputs());
     },
     "block_table: given beside segments; expected whole sequences"},
    {"PagedPlan",
     [](Calls& c) {
       const Plan plan = foveal::plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.paged = Paged{.block_table = {c.pages.data(), DType::i32, {2, 2}}, .seqlens_kv = {c.lengths_kv.data(), DType::i32, {2}}};
       plan.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "block_table: given; the plan expects none"},
    // sizes and strides whose products leave 64 bits
    {"HugeHeadDim", [](Calls& c) { c.q.sizes[3] = c.k.sizes[3] = std::int64_t{1} << 61, c.q.strides = c.k.strides = {}, c.forward(); },
     "q: shape [2, 8, 4, 2305843009213693952] has too many elements; expected at most 2^48"},
    {"HugeStride",
     [](Calls& c) {
       c.k = {c.at(2048), DType::f32, {2, 6, 2, 16}, {192, std::numeric_limits<std::int64_t>::min(), 16, 1}}, c.forward();
     },
     "k: strides [192, -9223372036854775808, 16, 1] reach too far; expected at most 2^60 bytes"},
    {"FarStrides",
     [](Calls& c) {
       const std::int64_t far = std::int64_t{1} << 56;
       c.v = {c.at(3072), DType::f32, {2, 6, 2, 12}, {far, far, far, 1}}, c.forward();
     },
     "v: strides [72057594037927936, 72057594037927936, 72057594037927936, 1] reach too far; expected at most 2^60 bytes"},
    {"HugeParam",
     [](Calls& c) {
       const Param huge{"huge", {std::int64_t{1} << 40, std::int64_t{1} << 40}};
       TensorView data{c.at(0), DType::f32, {1, 1}};
       data.sizes = {std::int64_t{1} << 40, std::int64_t{1} << 40}, data.strides = {0, 0};
       c.attention.score_mod = score + huge(0, 0), c.params = {{huge, data}}, c.forward();
     },
     "parameter huge: shape [1099511627776, 1099511627776] has too many elements; expected at most 2^48"},
    {"HugeBatchOfPages",
     [](Calls& c) {
       c.page(), c.q.sizes = {std::int64_t{1} << 36, 1, 4, 16}, c.q.strides = {};
       c.paged->block_table.sizes = {std::int64_t{1} << 36, 1}, c.paged->block_table.strides = {};
       c.forward();
     },
     "q: batch 68719476736 times heads 4; expected at most 2147483647"},
    {"LongestSequenceTimesHeadDim",
     [](Calls& c) {
       c.pack(), c.q.sizes[2] = c.k.sizes[2] = 1 << 18, c.q.strides = c.k.strides = {};
       c.varlen->max_seqlen_kv = std::numeric_limits<std::int32_t>::max(), c.forward();
     },
     "max_seqlen_q, max_seqlen_kv: sequences of 2147483647 times head_dim 262156; expected at most 2^48"},
    {"RoomOfPages",
     [](Calls& c) {
       c.page(), c.q.sizes[3] = c.k.sizes[3] = 1 << 17, c.q.strides = c.k.strides = {};
       c.paged->block_table.sizes[1] = 1 << 26, c.paged->block_table.strides = {};
       c.forward();
     },
     "block_table: room for 2147483648 keys of 262144 elements; expected at most 2^48 elements"},
    {"HugeSizes",
     [](Calls& c) {
       c.q = {c.at(0), DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40}}, c.forward();
     },
     "sizes: 1099511627776 in dimension 0; the elements of a tensor cannot be counted in 64 bits"},
    {"LongSequencesWithoutAMask",
     [](Calls&) { plan({}, Shapes{.seqlen_q = 1, .seqlen_kv = std::int64_t{1} << 40, .head_dim = 8, .head_dim_v = 8}, Pass::forward); },
     "k: last position 0 + 1099511627776; expected at most 2147483647"},
    {"HugeShapes", [](Calls&) { plan({}, Shapes{.seqlen_q = std::int64_t{1} << 62, .seqlen_kv = std::int64_t{1} << 62}, Pass::forward); },
     "sizes: 4611686018427387904 in dimension 1; the elements of a tensor cannot be counted in 64 bits"},

    // options and plans
    {"ExcludeUnknown", [](Calls& c) { c.options.exclude = "cuda,tpu", c.forward(); },
     "options.exclude: there is no 'tpu'; expected some of cpu, cuda, reference with commas between"},
    {"ExcludeAll", [](Calls& c) { c.options.exclude = "reference,cpu", c.forward(); }, "cpu: it was excluded", ErrorCode::unsupported},
    {"HeadDimForTheReferenceOnly", [](Calls&) { plan({}, Shapes{.head_dim = 1025}, Pass::forward); },
     "reference: exact and slow; it runs only when it is asked for by name", ErrorCode::unsupported},
    {"UnknownBackend", [](Calls& c) { c.options.backend = "tpu", c.forward(); }, "options.backend: there is no 'tpu'; expected one of "},
    {"UnknownTarget", [](Calls& c) { c.options.target = "sse9", c.forward(); }, "options.target: there is no 'sse9'; expected one of "},
    {"Threads", [](Calls& c) { c.options.threads = -2, c.forward(); }, "options.threads: -2; expected 0 (all) to 4096"},
    {"NumThreads", [](Calls&) { set_num_threads(-1); }, "threads: -1; expected 0 (all) to 4096"},
    {"EmptyExecutor", [](Calls& c) { c.options.executor = std::make_shared<Executor>(), c.forward(); },
     "options.executor: no function; expected one that runs tasks"},
    {"ExecutorWithoutSlots",
     [](Calls& c) {
       c.options.executor = std::make_shared<Executor>(Executor{0, {}}), c.forward();
     },
     "options.executor: concurrency 0; expected 1 to 4096"},
    {"WrongDeviceForBackend",
     [](Calls& c) {
       for (TensorView* view : {&c.q, &c.k, &c.v, &c.out, &c.lse}) view->device.kind = DeviceKind::cuda;
       c.options.backend = "reference", c.forward();
     },
     "reference: the tensors are on a GPU", ErrorCode::unsupported},
    {"EmptyPlan", [](Calls& c) { Plan().run(c.forward_inputs(), c.forward_outputs(), nullptr); },
     "plan: empty; expected one made by foveal::plan()"},
    {"PlanOtherPass",
     [](Calls& c) { plan(c.attention, c.forward_inputs(), c.forward_outputs()).run(c.backward_inputs(), c.backward_outputs(), nullptr); },
     "run: backward arguments; the plan is for forward"},
    {"PlanOtherStrides",
     [](Calls& c) {
       const Plan p = plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.q.strides[1] = 80, p.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "q: f32[2, 8, 4, 16] with strides [512, 80, 16, 1]; the plan expects f32[2, 8, 4, 16] with strides [512, 64, 16, 1]"},
    {"PlanLseMissing",
     [](Calls& c) {
       const Plan p = plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.lse = {}, p.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "lse: absent; the plan expects f32[2, 4, 8]"},
    {"PlanLseExtra",
     [](Calls& c) {
       const TensorView lse = c.lse;
       c.lse = {};
       const Plan p = plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.lse = lse, p.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "lse: given; the plan expects none"},
    {"PlanParams",
     [](Calls& c) {
       const Plan p = plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.params = {{c.table, c.table_data}}, p.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "params: 1 bindings; the plan expects 0"},
    {"PlanVarlen",
     [](Calls& c) {
       c.pack();
       const Plan p = plan(c.attention, c.forward_inputs(), c.forward_outputs());
       c.varlen = {};
       p.run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "varlen: absent; the plan expects it"},
    {"WorkspaceNull",
     [](Calls& c) {
       plan(c.attention, c.forward_inputs(), c.forward_outputs(), {.backend = "reference"})
           .run(c.forward_inputs(), c.forward_outputs(), nullptr);
     },
     "workspace: null; expected "},
    {"WorkspaceMisaligned",
     [](Calls& c) {
       plan(c.attention, c.forward_inputs(), c.forward_outputs(), {.backend = "reference"})
           .run(c.forward_inputs(), c.forward_outputs(), reinterpret_cast<void*>(0x1010));
     },
     "workspace: address is not a multiple of 256"},
    {"WorkspaceOverQ",
     [](Calls& c) {
       const auto behind = reinterpret_cast<std::uintptr_t>(c.at(0)) / 256 * 256;  // before q's first element, or at it
       plan(c.attention, c.forward_inputs(), c.forward_outputs(), {.backend = "reference"})
           .run(c.forward_inputs(), c.forward_outputs(), reinterpret_cast<void*>(behind));
     },
     " bytes overlap q in memory; expected a place of their own"},
};

class WrongCalls : public testing::TestWithParam<Row> {};

TEST_P(WrongCalls, SayWhatIsWrong) {
  Calls calls;
  try {
    GetParam().call(calls);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos)
        << "found:    " << error.what() << "\nexpected: " << GetParam().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, WrongCalls, testing::ValuesIn(rows), [](const auto& row) { return std::string(row.param.name); });

TEST(WrongCalls, TheRightCallIsRight) {
  Calls calls;
  calls.forward();
  calls.backward();
  calls.pack();
  calls.forward();
  Calls paged;
  paged.page();
  paged.forward();
  paged.backward();
}

TEST(WrongCalls, TableIsLongEnough) { EXPECT_GE(rows.size(), 60u); }

}  // namespace
}  // namespace foveal
