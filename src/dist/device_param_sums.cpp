#include "dist/device_param_sums.h"

#include "base/check.h"
#include "base/strided.h"

namespace foveal::dist {

DeviceParamSums::DeviceParamSums(const Context& context, DeviceBuffers& buffers, const std::vector<ParamBinding>& wanted)
    : c_(context), buffers_(buffers), wanted_(wanted) {
  for (const ParamBinding& w : wanted) first_.push_back(count_), count_ += w.tensor.numel();
}

void DeviceParamSums::prepare(Lane lane) {
  if (count_ == 0) return;
  LaneSums& sums = of(lane);
  sums.sums = values(), sums.part = values();
  buffers_.clear(sums.sums), buffers_.clear(sums.part);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (c_.is_sink(wanted_[i])) continue;
    std::byte* to = sums.part.data + first_[i] * static_cast<std::int64_t>(sizeof(double));
    sums.parts.push_back({wanted_[i].param, base::contiguous_like(wanted_[i].tensor, to, DType::f64)});
  }
}

void DeviceParamSums::add_part(Lane lane) {
  if (!of(lane).parts.empty()) buffers_.add(of(lane).part, of(lane).sums);
}

void DeviceParamSums::join(const std::vector<Lane>& lanes) {
  if (count_ == 0) return;
  for (const Lane lane : lanes) buffers_.add(of(lane).sums, of(Lane::caller).sums);
}

void DeviceParamSums::reduce_and_write() {
  if (count_ == 0) return;
  const Rows &sums = of(Lane::caller).sums, all = buffers_.rows(DType::f64, 1, c_.plan.ranks, 1, count_, RowMemory::For::messages);
  std::vector<Message> sends, receives;
  const auto bytes = static_cast<std::size_t>(sums.bytes());
  for (int rank = 0; rank < c_.plan.ranks; ++rank) {
    if (rank == c_.rank()) continue;
    sends.push_back({rank, sums.data, bytes});
    receives.push_back({rank, all.at(0, rank, 0), bytes});
  }
  const std::uint64_t ticket = buffers_.start(*c_.transport, sends, receives);
  buffers_.copy(sums, all.slice({c_.rank(), c_.rank() + 1}));
  buffers_.wait(*c_.transport, ticket);
  const Rows total = values();
  buffers_.copy(all.slice({0, 1}), total);
  for (int rank = 1; rank < c_.plan.ranks; ++rank) buffers_.add(all.slice({rank, rank + 1}), total);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    Rows from = total;
    from.data += first_[i] * static_cast<std::int64_t>(sizeof(double));
    write(from, wanted_[i].tensor);
  }
}

/// Contiguous values to a tensor of up to four dimensions, or of any number where it is contiguous.
void DeviceParamSums::write(Rows from, const TensorView& to) {
  std::int64_t sizes[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 1};
  if (base::is_contiguous(to)) {
    sizes[3] = to.numel();
  } else {
    if (to.rank > 4)
      base::fail(ErrorCode::unsupported, "dparams: a gradient of rank ", to.rank,
                 " with gaps; expected it contiguous, or of rank 4 at most");
    for (int d = 0; d < to.rank; ++d) {
      sizes[4 - to.rank + d] = to.sizes[static_cast<std::size_t>(d)];
      strides[4 - to.rank + d] = to.strides[static_cast<std::size_t>(d)];
    }
  }
  from.batch = sizes[0], from.tokens = sizes[1], from.heads = sizes[2], from.dim = sizes[3];
  const auto size = static_cast<std::int64_t>(size_of(to.dtype));
  Rows rows = from;
  rows.data = static_cast<std::byte*>(to.data), rows.dtype = to.dtype;
  rows.batch_stride = strides[0] * size, rows.token_stride = strides[1] * size, rows.head_stride = strides[2] * size;
  rows.dim_stride = strides[3] * size;
  buffers_.copy(contiguous_like(from, from.data), rows);
}

}  // namespace foveal::dist
