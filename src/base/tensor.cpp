#include "foveal/tensor.h"

#include "base/strided.h"

namespace foveal {

TensorView::TensorView(void* data_, DType dtype_, std::initializer_list<std::int64_t> sizes_, Device device_)
    : data(data_), dtype(dtype_), device(device_) {
  FOVEAL_CHECK(sizes_.size() <= max_rank, "sizes: ", sizes_.size(), " of them; expected at most ", max_rank);
  for (const std::int64_t size : sizes_) {
    FOVEAL_CHECK(size >= 0, "sizes: ", size, " in dimension ", rank, "; expected 0 or more");
    sizes[static_cast<std::size_t>(rank++)] = size;
  }
  base::make_contiguous(*this);
}

TensorView::TensorView(void* data_, DType dtype_, std::initializer_list<std::int64_t> sizes_, std::initializer_list<std::int64_t> strides_,
                       Device device_)
    : TensorView(data_, dtype_, sizes_, device_) {
  FOVEAL_CHECK(strides_.size() == sizes_.size(), "strides: ", strides_.size(), " of them; expected ", sizes_.size(), ", one for each size");
  std::size_t d = 0;
  for (const std::int64_t stride : strides_) strides[d++] = stride;
}

std::int64_t TensorView::numel() const {
  FOVEAL_CHECK(rank >= 0 && rank <= max_rank, "rank: ", rank, "; expected 0 to ", max_rank);
  return base::numel({sizes.data(), static_cast<std::size_t>(rank)});
}

std::string TensorView::describe() const {
  if (rank < 0 || rank > max_rank) return base::join(to_string(dtype), " of rank ", rank);
  return to_string(dtype) + base::shape_text(sizes.data(), rank);
}

}  // namespace foveal
