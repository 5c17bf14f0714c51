// Bounds of a parameter over a box of indices, from its data.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <type_traits>

#include "base/divide.h"
#include "base/dtype.h"
#include "score/interval.h"
#include "score/interval_rules.h"

namespace foveal::scoring {
namespace {

constexpr std::int64_t fan = 8;          // a block is fan x fan blocks of the level below
constexpr std::size_t max_levels = 21;   // up to fan^21 elements along one side
constexpr std::int64_t max_slices = 64;  // of the outer dimensions: a query over more gets the bounds of the whole parameter
constexpr double inf = std::numeric_limits<double>::infinity();

void include(Interval& range, const Interval& more) {
  range.low = std::min(range.low, more.low);
  range.high = std::max(range.high, more.high);
  range.maybe_nan |= more.maybe_nan;
}

constexpr Interval nothing{inf, -inf, false};

Interval of_value(double value, bool is_real) {
  if (std::isnan(value)) return {-inf, inf, true};
  return is_real ? interval_rules::in_kernels(value) : Interval{value, value};
}

/// Some rows of a matrix, whose columns are contiguous.
struct Rows {
  const void* data;
  std::int64_t row_stride, rows, columns;  ///< the stride in elements
};

/// Adds the bounds of blocks of up to fan rows and fan columns each. By columns, so that the comparisons are vector instructions.
/// get(x): an element as a number that can be compared; those that are no number are not equal to themselves.
template <class Stored, class Get>
void include_blocks(const Rows& all, bool is_real, Get get, Interval* blocks) {
  using T = decltype(get(Stored{}));
  constexpr int width = 64;  // columns at a time
  const auto* const data = static_cast<const Stored*>(all.data);
  for (std::int64_t begin = 0; begin < all.columns; begin += width) {
    const auto count = static_cast<int>(std::min<std::int64_t>(width, all.columns - begin));
    T low[width], high[width];
    bool nan[width] = {};
    for (std::int64_t row = 0; row < all.rows; ++row) {
      const Stored* const from = data + row * all.row_stride + begin;
      for (int i = 0; i < count; ++i) {
        const T x = get(from[i]);
        low[i] = row == 0 || x < low[i] ? x : low[i];
        high[i] = row == 0 || x > high[i] ? x : high[i];
        if constexpr (std::is_floating_point_v<T>) nan[i] |= x != x;
      }
    }
    for (int i = 0; i < count; ++i) {
      Interval& block = blocks[(begin + i) / fan];
      if (nan[i]) {
        include(block, {-inf, inf, true});
        continue;
      }
      include(block, of_value(static_cast<double>(low[i]), is_real));
      if (high[i] != low[i]) include(block, of_value(static_cast<double>(high[i]), is_real));
    }
  }
}

/// The same by the elements' type. False where there is no such loop.
bool include_blocks(const Rows& rows, DType dtype, Interval* blocks) {
  const auto as_is = [](auto x) { return x; };
  switch (dtype) {
    case DType::f64:
      return include_blocks<double>(rows, true, as_is, blocks), true;
    case DType::f32:
      return include_blocks<float>(rows, true, as_is, blocks), true;
    case DType::i64:
      return include_blocks<std::int64_t>(rows, false, as_is, blocks), true;
    case DType::i32:
      return include_blocks<std::int32_t>(rows, false, as_is, blocks), true;
    case DType::i16:
      return include_blocks<std::int16_t>(rows, false, as_is, blocks), true;
    case DType::i8:
      return include_blocks<std::int8_t>(rows, false, as_is, blocks), true;
    case DType::u8:
      return include_blocks<std::uint8_t>(rows, false, as_is, blocks), true;
    case DType::boolean:
      return include_blocks<std::uint8_t>(
                 rows, false, [](std::uint8_t x) { return static_cast<std::uint8_t>(x != 0); }, blocks),
             true;
    default:
      return false;
  }
}

}  // namespace

/// Bounds of blocks of the last two dimensions, as a pyramid for every slice (every index of the outer dimensions).
class DataReadRanges::Summary {
 public:
  Summary(const TensorView& tensor, std::pmr::memory_resource* memory)
      : tensor_(at_least_2d(tensor)), is_real_(is_floating(tensor.dtype)), levels_(memory) {
    for (std::size_t i = 0; i < outer(); ++i) slices_ *= tensor_.sizes[i];
  }

  /// Memory of all levels, for a tensor of this shape.
  static std::size_t bytes(const std::vector<std::int64_t>& shape) {
    const std::size_t rank = shape.size();
    std::int64_t columns = rank >= 1 ? shape[rank - 1] : 1, rows = rank >= 2 ? shape[rank - 2] : 1, slices = 1;
    for (std::size_t i = 0; i + 2 < rank; ++i) slices *= shape[i];
    std::int64_t blocks = 0;
    do {
      rows = base::divide_up(rows, fan);
      columns = base::divide_up(columns, fan);
      blocks += slices * rows * columns;
    } while (rows > 1 || columns > 1);
    return max_levels * sizeof(Level) + static_cast<std::size_t>(blocks) * sizeof(Interval);
  }

  Interval range(std::span<const Interval> index) const {
    std::call_once(built_, [this] { build(); });  // on demand: most parameters are large tables that only the score reads
    Position first{}, last{};
    const std::size_t padding = outer() + 2 - index.size();
    for (std::size_t i = 0; i < index.size(); ++i) {
      const auto top = static_cast<double>(tensor_.sizes[padding + i] - 1);
      first[padding + i] = static_cast<std::int64_t>(std::clamp(index[i].low, 0.0, top));
      last[padding + i] = static_cast<std::int64_t>(std::clamp(index[i].high, 0.0, top));
    }
    std::int64_t slices = 1;
    for (std::size_t i = 0; i < outer(); ++i) slices *= last[i] - first[i] + 1;
    if (slices > max_slices) return everything_;
    const Area area{first[outer()], last[outer()] + 1, first[outer() + 1], last[outer() + 1] + 1};
    Interval result = nothing;
    Position position = first;
    for (std::int64_t n = 0; n < slices; ++n) {
      query(slice_number(position), area, static_cast<int>(levels_.size()), 0, 0, result);
      for (std::size_t i = outer(); i-- > 0;) {  // the next slice
        if (++position[i] <= last[i]) break;
        position[i] = first[i];
      }
    }
    return result;
  }

 private:
  using Position = std::array<std::int64_t, TensorView::max_rank>;
  struct Area {
    std::int64_t row_begin, row_end, column_begin, column_end;
  };
  struct Level {
    std::int64_t rows, columns;  ///< blocks
    std::pmr::vector<Interval> blocks;
  };

  /// With leading dimensions of size 1.
  static TensorView at_least_2d(TensorView view) {
    for (; view.rank < 2; ++view.rank) {
      view.sizes[1] = view.sizes[0], view.strides[1] = view.strides[0];
      view.sizes[0] = 1, view.strides[0] = 0;
    }
    return view;
  }
  std::size_t outer() const { return static_cast<std::size_t>(tensor_.rank) - 2; }

  std::int64_t slice_number(const Position& position) const {
    std::int64_t number = 0;
    for (std::size_t i = 0; i < outer(); ++i) number = number * tensor_.sizes[i] + position[i];
    return number;
  }

  std::int64_t slice_offset(std::int64_t number) const {
    std::int64_t offset = 0;
    for (std::size_t i = outer(); i-- > 0; number /= tensor_.sizes[i]) offset += number % tensor_.sizes[i] * tensor_.strides[i];
    return offset;
  }

  Interval element(std::int64_t slice_offset, std::int64_t row, std::int64_t column) const {
    return of_value(
        base::load(tensor_.data, tensor_.dtype, slice_offset + row * tensor_.strides[outer()] + column * tensor_.strides[outer() + 1]),
        is_real_);
  }
  /// The elements of rows [row, row + count) into their blocks, the first of which is given.
  void include_elements(std::int64_t slice_offset, std::int64_t row, std::int64_t count, Interval* blocks) const {
    const std::int64_t row_stride = tensor_.strides[outer()], columns = tensor_.sizes[outer() + 1];
    const auto size = static_cast<std::int64_t>(size_of(tensor_.dtype));
    const char* const data = static_cast<const char*>(tensor_.data) + (slice_offset + row * row_stride) * size;
    const bool aligned = reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size) == 0;
    if (aligned && (tensor_.strides[outer() + 1] == 1 || columns == 1) &&
        include_blocks({data, row_stride, count, columns}, tensor_.dtype, blocks))
      return;
    for (std::int64_t i = row; i < row + count; ++i)
      for (std::int64_t j = 0; j < columns; ++j) include(blocks[j / fan], element(slice_offset, i, j));
  }

  void build() const {
    std::int64_t rows = tensor_.sizes[outer()], columns = tensor_.sizes[outer() + 1];
    levels_.reserve(max_levels);
    do {  // until one block holds a whole slice
      const std::int64_t below_rows = rows, below_columns = columns;
      rows = base::divide_up(rows, fan);
      columns = base::divide_up(columns, fan);
      Level level{rows, columns,
                  std::pmr::vector<Interval>(static_cast<std::size_t>(slices_ * rows * columns), nothing, levels_.get_allocator())};
      for (std::int64_t slice = 0; slice < slices_; ++slice) {
        const std::int64_t offset = slice_offset(slice);
        for (std::int64_t row = 0; row < rows; ++row) {
          Interval* const blocks = level.blocks.data() + (slice * rows + row) * columns;
          const std::int64_t end = std::min((row + 1) * fan, below_rows);
          if (levels_.empty()) {
            include_elements(offset, row * fan, end - row * fan, blocks);
            continue;
          }
          for (std::int64_t i = row * fan; i < end; ++i)
            for (std::int64_t j = 0; j < below_columns; ++j) include(blocks[j / fan], block_at(levels_.back(), slice, i, j));
        }
      }
      levels_.push_back(std::move(level));
    } while (rows > 1 || columns > 1);
    everything_ = nothing;
    for (const Interval& block : levels_.back().blocks) include(everything_, block);
  }

  static const Interval& block_at(const Level& level, std::int64_t slice, std::int64_t row, std::int64_t column) {
    return level.blocks[static_cast<std::size_t>((slice * level.rows + row) * level.columns + column)];
  }

  /// Widens `result` by the part of block (row, column) that lies in the area. Level 0: elements.
  void query(std::int64_t slice, const Area& area, int level, std::int64_t row, std::int64_t column, Interval& result) const {
    if (level == 0) return include(result, element(slice_offset(slice), row, column));
    std::int64_t size = fan;
    for (int i = 1; i < level; ++i) size *= fan;
    const Area block{row * size, std::min((row + 1) * size, tensor_.sizes[outer()]), column * size,
                     std::min((column + 1) * size, tensor_.sizes[outer() + 1])};
    const Interval& bounds = block_at(levels_[static_cast<std::size_t>(level - 1)], slice, row, column);
    if (bounds.low >= result.low && bounds.high <= result.high && bounds.maybe_nan <= result.maybe_nan) return;  // adds nothing
    if (area.row_begin <= block.row_begin && block.row_end <= area.row_end && area.column_begin <= block.column_begin &&
        block.column_end <= area.column_end) {
      return include(result, bounds);
    }
    const std::int64_t part = size / fan;
    const std::int64_t row_end = std::min(block.row_end, area.row_end), column_end = std::min(block.column_end, area.column_end);
    for (std::int64_t i = std::max(block.row_begin, area.row_begin) / part; i * part < row_end; ++i)
      for (std::int64_t j = std::max(block.column_begin, area.column_begin) / part; j * part < column_end; ++j)
        query(slice, area, level - 1, i, j, result);
  }

  TensorView tensor_;  ///< of rank 2 or more
  bool is_real_;
  std::int64_t slices_ = 1;
  mutable std::once_flag built_;
  mutable std::pmr::vector<Level> levels_;
  mutable Interval everything_{};
};

DataReadRanges::DataReadRanges(const std::vector<ParamInfo>& params, const std::vector<TensorView>& tensors,
                               std::pmr::memory_resource* memory)
    : summaries_(params.size(), nullptr, memory) {
  for (std::size_t i = 0; i < params.size() && i < tensors.size(); ++i)
    if (tensors[i].data != nullptr && tensors[i].device.kind == DeviceKind::cpu && tensors[i].numel() > 0)
      summaries_[i] = std::pmr::polymorphic_allocator<>(memory).new_object<Summary>(tensors[i], memory);
}

DataReadRanges::~DataReadRanges() {
  for (Summary* summary : summaries_)
    if (summary) std::pmr::polymorphic_allocator<>(summaries_.get_allocator()).delete_object(summary);
}

Interval DataReadRanges::range(std::int32_t param, std::span<const Interval> index) const {
  const Summary* summary = summaries_[static_cast<std::size_t>(param)];
  return summary ? summary->range(index) : ReadRanges::range(param, index);
}

std::size_t DataReadRanges::bytes(const Program& program, const std::vector<ParamInfo>& params) {
  constexpr std::size_t gap = alignof(std::max_align_t);  // between two pieces
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer to each is kept
  std::size_t sum = params.size() * (sizeof(Summary*) + sizeof(Summary) + gap) + gap;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const bool is_read = std::any_of(program.code.begin(), program.code.end(), [i](const Instr& instr) {
      return instr.op == Op::read && instr.param == static_cast<std::int32_t>(i);
    });
    if (is_read) sum += Summary::bytes(params[i].shape) + (max_levels + 1) * gap;
  }
  return sum;
}

}  // namespace foveal::scoring
