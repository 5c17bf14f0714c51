#pragma once
// Calls on the device of the mock driver.
#include <cstdlib>
#include <string>

#include "cuda/jit/driver.h"
#include "foveal/foveal.h"
#include "mock_driver.h"
#include "problem/case_data.h"

namespace foveal::test {

/// Before anything of foveal runs: the compiler is the mock's, and no kernel is kept on disk.
inline const bool environment_is_set = [] {
  setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
  setenv("FOVEAL_CACHE_DIR", "", 1);
  return true;
}();

/// A line whose tensors are said to lie on the device. Nothing reads or writes them.
class OnDevice {
 public:
  explicit OnDevice(const std::string& line) : data_(problem::parse_line(line)) {}

  Attention& attention() { return attention_; }
  void forward(Stream stream = {}) {
    ForwardInputs in = data_.forward_inputs();
    ForwardOutputs out = data_.forward_outputs();
    move(in, out);
    foveal::forward(attention_, in, out, stream);
  }
  void backward(Stream stream = {}) {
    BackwardInputs in = data_.backward_inputs();
    BackwardOutputs out = data_.backward_outputs();
    move(in, out);
    foveal::backward(attention_, in, out, stream);
  }
  Plan backward_plan() {
    BackwardInputs in = data_.backward_inputs();
    BackwardOutputs out = data_.backward_outputs();
    move(in, out);
    return foveal::plan(attention_, in, out);
  }
  Plan plan() {
    ForwardInputs in = data_.forward_inputs();
    ForwardOutputs out = data_.forward_outputs();
    move(in, out);
    return foveal::plan(attention_, in, out);
  }

 private:
  static void move(TensorView& view) {
    if (view.present()) view.device = {DeviceKind::cuda, 0};
  }
  static void move(ForwardInputs& in, ForwardOutputs& out) {
    for (TensorView* view : {&in.q, &in.k, &in.v, &out.out, &out.lse}) move(*view);
    move(in.params, in.paged);
  }
  static void move(BackwardInputs& in, BackwardOutputs& out) {
    for (TensorView* view : {&in.q, &in.k, &in.v, &in.out, &in.lse, &in.dout, &out.dq, &out.dk, &out.dv}) move(*view);
    move(in.params, in.paged);
    for (ParamBinding& param : out.dparams) move(param.tensor);
  }
  static void move(std::vector<ParamBinding>& params, std::optional<Paged>& paged) {
    for (ParamBinding& param : params) move(param.tensor);
    if (!paged) return;
    for (TensorView* view : {&paged->block_table, &paged->seqlens_kv}) move(*view);
  }
  problem::CaseData data_;
  Attention attention_ = data_.line().attention;
};

}  // namespace foveal::test
