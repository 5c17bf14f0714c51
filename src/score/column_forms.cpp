#include "score/column_forms.h"

#include <algorithm>

#include "score/linear.h"

namespace foveal::scoring {
namespace {

/// The largest block of 8 to `most` keys whose length divides n, or 0.
int block_dividing(std::int64_t n, int most = ColumnForm::period) {
  for (int block = most; block >= 8; block /= 2)
    if (n % block == 0) return block;
  return 0;
}

class Forms {
 public:
  Forms(const Program& program, std::int64_t kv_offset)
      : program_(program), linear_(linear_forms(program)), first_block_(block_dividing(kv_offset)) {
    for (ValueId id = 0; id < program.size(); ++id) found_.add(of(id));
  }
  base::IdVector<ColumnForm> forms() const {
    base::IdVector<ColumnForm> forms;
    for (const Form& form : found_) forms.add(form);
    return forms;
  }

 private:
  struct Form : ColumnForm {
    bool congruent = false;  ///< an integer polynomial of kv and periodic values: modulo a divisor of the period it is periodic
  };

  /// Its increase from one key to the next, if that is constant.
  std::optional<std::int64_t> slope(ValueId id) const {
    std::int64_t slope = 0;
    for (const Linear::Term& term : linear_[id].terms) {
      if (program_[term.atom].op == Op::kv_idx)
        slope += term.coefficient;
      else if (program_.depends_on(term.atom, depends_kv | depends_score))
        return std::nullopt;
    }
    return slope;
  }
  std::optional<std::int64_t> constant(ValueId id) const {
    const Instr& instr = program_[id];
    return instr.op == Op::integer_const ? std::optional(instr.integer) : std::nullopt;
  }

  Form of(ValueId id) const {
    const Instr& instr = program_[id];
    if (program_.depends_on(id, depends_score)) return {};
    Form form;
    if (!program_.depends_on(id, depends_kv)) {
      form.run = ColumnForm::period;
      form.repeats = form.congruent = true;
      return form;
    }
    if (instr.op == Op::kv_idx) {
      form.line = first_block_;
      form.distinct = form.congruent = true;
      return form;
    }
    form.run = ColumnForm::period;
    form.repeats = true;
    for_each_operand(instr, [&](ValueId operand) {
      form.run = std::min(form.run, found_[operand].run);
      form.repeats = form.repeats && found_[operand].repeats;
    });
    if (instr.type == Type::integer) {
      add_integer(form, instr);
      form.distinct = form.distinct || slope(id).value_or(0) != 0;
    }
    form.congruent = form.congruent || form.repeats;
    return form;
  }

  void add_integer(Form& form, const Instr& instr) const {
    const auto a = instr.arg[0], b = instr.arg[1];
    switch (instr.op) {
      case Op::add:
      case Op::sub: {
        const Form &first = found_[a], &second = found_[b];
        const int sign = instr.op == Op::add ? 1 : -1;
        form.congruent = first.congruent && second.congruent;
        if (const auto shift = constant(b); shift && first.line > 0) form.line = block_dividing(*shift, first.line);
        if (const auto shift = constant(a); shift && second.line > 0 && sign > 0) form.line = block_dividing(*shift, second.line);
        break;
      }
      case Op::neg:
        form.congruent = found_[a].congruent;
        break;
      case Op::mul:
        form.congruent = found_[a].congruent && found_[b].congruent;
        break;
      case Op::floor_div:
        if (const auto by = constant(b); by && *by > 0 && found_[a].line > 0)
          form.run = std::max(form.run, block_dividing(*by, found_[a].line));
        if (const auto by = constant(b); by && *by >= 8) form.stairs = slope(a) == 1;
        break;
      case Op::mod:
        if (const auto by = constant(b); by && *by > 0) {
          const Form& value = found_[a];
          if (value.line > 0) form.line = block_dividing(*by, value.line);
          form.repeats = form.repeats || (value.congruent && ColumnForm::period % *by == 0);
          form.distinct = *by >= 8 && std::abs(slope(a).value_or(0)) == 1;
        }
        break;
      default:
        break;
    }
  }

  const Program& program_;
  const base::IdVector<Linear> linear_;
  const int first_block_;
  base::IdVector<Form> found_;
};

}  // namespace

base::IdVector<ColumnForm> column_forms(const Program& program, std::int64_t kv_offset) { return Forms(program, kv_offset).forms(); }

ColumnForm form_of_element(const base::IdVector<ColumnForm>& forms, const std::vector<ValueId>& index) {
  ColumnForm element{.run = ColumnForm::period, .line = 0, .repeats = true, .distinct = false};
  for (const ValueId id : index) {
    const ColumnForm& of_index = forms[id];
    element.run = std::min(element.run, of_index.run);
    element.repeats = element.repeats && of_index.repeats;
    element.distinct = element.distinct || of_index.distinct;
  }
  return element;
}

}  // namespace foveal::scoring
