#pragma once
// Masks that users write, with data for their parameters: causal and windows, documents, block-sparse, trees, images.
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "foveal/masks.h"
#include "foveal/tensor.h"
#include "score/evaluate.h"

namespace foveal::test {

constexpr std::int64_t seqlen_q = 277, seqlen_kv = 331, batch_size = 2, heads = 4;

struct BoundParam {
  Param param;
  std::shared_ptr<std::vector<std::int32_t>> data;
};

/// Must every tile be classified as brute force does, or only soundly: partial where bounds cannot decide?
enum class Exact { yes, soundly };

struct MaskCase {
  std::string name;
  Expr mask;
  Exact exact = Exact::yes;
  std::vector<BoundParam> bound{};

  std::vector<Param> params() const {
    std::vector<Param> result;
    for (const BoundParam& b : bound) result.push_back(b.param);
    return result;
  }
  std::vector<TensorView> tensors() const {
    std::vector<TensorView> result;
    for (const BoundParam& b : bound) {
      TensorView view;
      view.data = b.data->data();
      view.dtype = DType::i32;
      view.rank = static_cast<int>(b.param.shape().size());
      std::int64_t stride = 1;
      for (int i = view.rank - 1; i >= 0; --i) {
        view.sizes[static_cast<std::size_t>(i)] = b.param.shape()[static_cast<std::size_t>(i)];
        view.strides[static_cast<std::size_t>(i)] = stride;
        stride *= view.sizes[static_cast<std::size_t>(i)];
      }
      result.push_back(view);
    }
    return result;
  }
};

/// Reads i32 tensors, clamping indices as unchecked runs do.
class TensorReader : public scoring::ParamReader {
 public:
  explicit TensorReader(std::vector<TensorView> tensors) : tensors_(std::move(tensors)) {}
  double read(std::int32_t param, const std::int64_t* index) const override {
    const TensorView& tensor = tensors_[static_cast<std::size_t>(param)];
    std::int64_t offset = 0;
    for (int i = 0; i < tensor.rank; ++i) {
      const auto at = static_cast<std::size_t>(i);
      offset += std::clamp<std::int64_t>(index[i], 0, tensor.sizes[at] - 1) * tensor.strides[at];
    }
    return static_cast<const std::int32_t*>(tensor.data)[offset];
  }

 private:
  std::vector<TensorView> tensors_;
};

inline void PrintTo(const MaskCase& mask_case, std::ostream* out) { *out << mask_case.name; }

std::vector<MaskCase> mask_catalogue();

}  // namespace foveal::test
