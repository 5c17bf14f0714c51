// From nodes to steps: sections, and the allocation of slots.
#include <algorithm>
#include <cstring>

#include "cpu/tape_nodes.h"

namespace foveal::cpu {

static_assert(sizeof(CompiledTape::Constant) == tape_constant_distance);

namespace {

enum class Section : std::uint8_t { before, strip, after };

class Assembler {
 public:
  Assembler(const TapeNodes& nodes, NodeId output) : nodes_(nodes), output_(output) {
    slots_.assign(nodes.size(), {});
    last_use_.assign(nodes.size(), no_node);
  }

  CompiledTape run(const base::IdVector<int>& uses);
  base::IdVector<TapeOperand> take_slots() { return std::move(slots_); }

 private:
  void sort_into_sections(const base::IdVector<int>& uses);
  void start_sums();
  void emit(NodeId id, NodeId strip_position);
  void emit_constant(NodeId id);
  TapeOperand result_of(NodeId id, NodeId strip_position);
  TapeOperand operand(NodeId id, bool in_strip);
  TapeOperand broadcast(NodeId id);
  TapeOperand next_slot(Space space) { return {space, tape_.program.slots[slot_space(space)]++}; }
  TapeOperand new_slot(Varies rank);
  int address(int place, bool in_strip);

  std::vector<NodeId>& order(Section section) { return order_[static_cast<std::size_t>(section)]; }

  const TapeNodes& nodes_;
  const NodeId output_;
  std::array<std::vector<NodeId>, 3> order_;  ///< of each section, operands first
  base::IdVector<NodeId> last_use_;           ///< position in the strip
  base::IdVector<TapeOperand> slots_;
  std::map<NodeId, TapeOperand> broadcasts_;
  std::map<std::pair<int, bool>, int> addresses_;
  std::vector<std::int32_t> free_strips_;
  CompiledTape tape_;
};

void Assembler::sort_into_sections(const base::IdVector<int>& uses) {
  base::IdVector<Section> section(nodes_.size(), Section::before);
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (uses[id] == 0 || node.space != Space::none) continue;
    bool summed = false;
    nodes_.each_operand(node, [&](NodeId arg) { summed |= is_sum(nodes_[arg].op) || section[arg] == Section::after; });
    section[id] = summed ? Section::after : node.rank == Varies::pair || is_sum(node.op) ? Section::strip : Section::before;
    order(section[id]).push_back(id);
  }
  std::vector<NodeId>& strip = order(Section::strip);
  if (output_ != no_node) {  // it may overwrite inputs of other steps
    strip.erase(std::find(strip.begin(), strip.end(), output_));
    strip.push_back(output_);
  }
  for (std::size_t position = 0; position < strip.size(); ++position) {
    const Node& node = nodes_[strip[position]];
    tape_.program.strip_element = std::max(tape_.program.strip_element, nodes_.element_of(node));
    nodes_.each_operand(node, [&](NodeId arg) { last_use_[arg] = static_cast<NodeId>(position); });
  }
}

TapeOperand Assembler::new_slot(Varies rank) {
  static constexpr Space spaces[] = {Space::uniform, Space::lane, Space::key, Space::diagonal, Space::strip};  // by Varies
  const Space space = spaces[static_cast<std::size_t>(rank)];
  if (space == Space::strip && !free_strips_.empty()) {
    const std::int32_t slot = free_strips_.back();
    free_strips_.pop_back();
    return {space, slot};
  }
  return next_slot(space);
}

/// A key value, repeated along the lanes of the strip.
TapeOperand Assembler::broadcast(NodeId id) {
  const auto [at, added] = broadcasts_.try_emplace(id);
  if (added) {
    at->second = next_slot(Space::key_broadcast);
    TapeStep step;
    step.op = TapeOp::broadcast;
    step.rank = Varies::pair;
    step.wide = nodes_[id].wide;
    step.integer_bytes = gives_real(nodes_[id].op) ? 0 : nodes_.element_of(nodes_[id]);
    step.out = at->second;
    step.a = slots_[id];
    tape_.steps.push_back(step);
  }
  return at->second;
}

TapeOperand Assembler::operand(NodeId id, bool in_strip) {
  if (id == no_node) return {};
  const Node& node = nodes_[id];
  if (node.space != Space::none) return {node.space, 0};
  return in_strip && node.rank == Varies::column ? broadcast(id) : slots_[id];
}

int Assembler::address(int place, bool in_strip) {
  const auto [at, added] = addresses_.try_emplace({place, in_strip}, static_cast<int>(tape_.places.size()));
  if (!added) return at->second;
  const PlaceNode& from = nodes_.place(place);
  TapePlace address;
  address.param = from.param;
  address.rank = static_cast<int>(from.index.size());
  double span = 0;
  for (std::size_t d = 0; d < from.index.size(); ++d) {
    const std::int64_t size = from.layout.sizes[d], stride = from.layout.strides[d];
    address.dims[d] = {operand(from.index[d], in_strip), static_cast<std::int32_t>(std::min<std::int64_t>(size, highest_integer)), stride};
    if (nodes_[from.index[d]].rank != Varies::uniform) span += static_cast<double>(size - 1) * std::abs(static_cast<double>(stride));
  }
  address.narrow = span < 2147483648.0;
  tape_.places.push_back(address);
  return at->second;
}

void Assembler::emit_constant(NodeId id) {
  const Node& node = nodes_[id];
  CompiledTape::Constant constant{};
  const auto repeat = [&](auto value) {
    for (int i = 0; i < 16; ++i) std::memcpy(constant.bytes + i * static_cast<int>(sizeof value), &value, sizeof value);
  };
  if (node.op == TapeOp::constant_i || node.op == TapeOp::constant_l) {
    constant.value = static_cast<double>(node.integer);
    if (node.op == TapeOp::constant_l)
      repeat(node.integer);
    else
      repeat(static_cast<std::int32_t>(node.integer));
  } else {
    constant.value = node.real;
    if (nodes_.element_of(node) == 8)
      repeat(node.real);
    else
      repeat(static_cast<float>(node.real));
  }
  slots_[id] = {Space::constant, static_cast<std::int32_t>(tape_.constants.size())};
  tape_.constants.push_back(constant);
}

/// The destination of a step of the strip. It may reuse the slot of an operand whose last use this is if its elements are not
/// larger, because steps write behind where they read.
TapeOperand Assembler::result_of(NodeId id, NodeId strip_position) {
  const Node& node = nodes_[id];
  std::vector<std::int32_t> later;
  std::vector<NodeId> freed;
  nodes_.each_operand(node, [&](NodeId arg) {
    const TapeOperand slot = slots_[arg];
    if (slot.space != Space::strip || last_use_[arg] != strip_position) return;
    if (std::find(freed.begin(), freed.end(), arg) != freed.end()) return;
    freed.push_back(arg);
    (nodes_.element_of(node) <= nodes_.element_of(nodes_[arg]) ? free_strips_ : later).push_back(slot.slot);
  });
  TapeOperand result;
  if (id == output_)
    result = {Space::output, 0};
  else if (node.op != TapeOp::accumulate)
    result = slots_[id] = is_sum(node.op) ? slots_[id] : new_slot(node.rank);
  free_strips_.insert(free_strips_.end(), later.begin(), later.end());
  return result;
}

/// strip_position: no_node outside of the strip.
void Assembler::emit(NodeId id, NodeId strip_position) {
  const Node& node = nodes_[id];
  if (node.op == TapeOp::constant_r || node.op == TapeOp::constant_i || node.op == TapeOp::constant_l) return emit_constant(id);
  const bool in_strip = strip_position != no_node;
  TapeStep step;
  step.op = node.op;
  step.rank = node.rank;
  step.wide = node.wide;
  step.a = operand(node.arg[0], in_strip);
  step.b = operand(node.arg[1], in_strip);
  step.c = operand(node.arg[2], in_strip);
  if (node.place >= 0) step.place = address(node.place, in_strip);
  if (in_strip)
    step.out = result_of(id, strip_position);
  else if (node.op != TapeOp::accumulate)
    step.out = slots_[id] = new_slot(node.rank);
  tape_.steps.push_back(step);
}

void Assembler::start_sums() {
  for (NodeId id : order(Section::strip)) {
    const Node& node = nodes_[id];
    if (!is_sum(node.op)) continue;
    TapeStep step;
    step.op = TapeOp::zero_r;
    step.rank = node.rank;
    step.out = slots_[id] = new_slot(node.rank);
    tape_.steps.push_back(step);
  }
}

CompiledTape Assembler::run(const base::IdVector<int>& uses) {
  sort_into_sections(uses);
  const auto steps = [&] { return static_cast<int>(tape_.steps.size()); };
  TapeProgram& program = tape_.program;
  for (NodeId id : order(Section::before)) emit(id, no_node);
  start_sums();
  program.strip_begin = steps();
  NodeId position = 0;
  for (NodeId id : order(Section::strip)) emit(id, position++);
  program.strip_end = steps();
  for (NodeId id : order(Section::after)) emit(id, no_node);
  program.count = steps();
  program.steps = tape_.steps.data();
  program.places = tape_.places.data();
  program.constants = tape_.constants.data();
  return std::move(tape_);
}

}  // namespace

CompiledTape assemble(TapeNodes& nodes, std::vector<NodeId> roots, NodeId output, base::IdVector<TapeOperand>* slots) {
  if (output != no_node) roots.push_back(output);
  nodes.fuse_multiply_adds(nodes.count_uses(roots));
  Assembler assembler(nodes, output);
  CompiledTape tape = assembler.run(nodes.count_uses(roots));
  if (slots) *slots = assembler.take_slots();
  return tape;
}

}  // namespace foveal::cpu
