// Products in text: their uniform factors are hoisted out of the loops over pairs.
#include "cuda/score/score_writer.h"

namespace foveal::cuda {
namespace {

void multiply(std::string& text, const std::string& factor) { text += (text.empty() ? "" : " * ") + factor; }

std::string product_of(const std::vector<ValueId>& values) {
  std::string text;
  for (const ValueId id : values) multiply(text, base::join("v", id));
  return base::join("(", text, ")");
}

}  // namespace

Writer::Hoisted Writer::hoist(ValueId id, const std::optional<Product>& product) const {
  if (!product) return {base::join("v", id)};
  const auto [rest, uniform] = rest_and_factor(*product);
  return {rest.empty() ? "1" : rest, uniform.empty() ? "1" : uniform, product->factor_values()};
}

Writer::Hoisted Writer::hoist_constant(ValueId id) const {
  const auto product = forms_.hoisted_constant(id);
  if (!product) return {base::join("v", id)};
  const std::string constant = real_text(product->constant);
  if (forms_.is_multiple_of_tanh(*product)) return {"at.tanh", constant};
  return {product_text({1.0, product->factors, product->rest}), constant};
}

Writer::Hoisted Writer::hoist_from_factor(ValueId id) const {
  const auto factor = forms_.hoisted_factor(id);
  if (!factor) return {base::join("v", id)};
  if (!factor->summands) return hoist(id, factor->product);
  const auto& [first, second] = *factor->summands;
  const std::string rest = base::join("(", product_text(first), " + ", product_text(second), ")");
  Hoisted text = hoist(id, Product{factor->product.constant, factor->product.factors, {}});
  text.rest = rest;
  return text;
}

Writer::Hoisted Writer::gain_of(const ScoreSum& sum) const { return {"", rest_and_factor(sum.gain).second, sum.gain.factor_values()}; }

Writer::Offset Writer::offset_of(const ScoreSum::Offset& offset) const {
  Offset text{hoist_uniform(offset.value)};
  if (offset.has_row()) {
    text.row = product_of(offset.row), text.term.rest = product_of(offset.rest);
  } else if (offset.is_product) {
    text.term.rest = base::join("(", rest_and_factor({1.0, {}, forms_.varying_factors(offset.value)}).first, ")");
  }
  if (offset.negative) text.term.uniform = base::join("-(", text.term.uniform, ")");
  return text;
}

std::string Writer::tanh_factor(ValueId tanh) const {
  const ValueId argument = program()[tanh].arg[0];
  return body({argument}) + base::join("  return ", rest_and_factor(forms_.product_of(argument)).second, ";\n");
}

std::string Writer::tanh_times(ValueId value) const {
  const Product product = forms_.product_of(value);
  if (!forms_.is_multiple_of_tanh(product) || product.factors.empty()) return "  return 1;\n";
  return body(product.factor_values()) + base::join("  return ", rest_and_factor({1.0, product.factors, {}}).second, ";\n");
}

std::pair<std::string, std::string> Writer::rest_and_factor(const Product& product) const {
  std::string rest, uniform;
  for (const ValueId id : product.rest) {
    const bool score = program()[id].op == Op::score;
    multiply(rest, score ? "score.raw" : base::join("v", id));
    if (score) multiply(uniform, "score.scale");
  }
  if (product.constant != 1) multiply(uniform, real_text(product.constant));
  for (const auto& [id, divides] : product.factors)
    multiply(uniform, divides ? base::join("fv_divide(real(1), v", id, ")") : base::join("v", id));
  return {product.rest.size() > 1 ? base::join("(", rest, ")") : rest, uniform};
}

std::string Writer::product_text(const Product& product) const {
  const auto [rest, factor] = rest_and_factor(product);
  if (rest.empty()) return factor;
  return factor.empty() ? rest : base::join("(", rest, " * (", factor, "))");
}

}  // namespace foveal::cuda
