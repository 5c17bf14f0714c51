// Parses problem lines.
#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/ascii.h"
#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"
#include "base/random.h"
#include "base/wide_type.h"
#include "problem/line.h"
#include "problem/param_fill.h"
#include "score/parse.h"

namespace foveal::problem {
namespace {

struct Token {
  std::string_view key, value;  ///< `key=value`; without '=' the whole token is the key
  std::size_t column;
};

template <class... Pieces>
[[noreturn]] void fail_at(const Token& token, const Pieces&... pieces) {
  base::fail(ErrorCode::invalid_argument, "problem line, column ", token.column + 1, ": ", token.key, ": ", pieces...);
}

constexpr std::string_view blanks = " \t\r\n";

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  std::size_t at = 0;
  while (true) {
    at = std::min(text.find_first_not_of(blanks, at), text.size());
    if (at == text.size()) return tokens;
    Token token{.key = {}, .value = {}, .column = at};
    std::size_t end = std::min(text.find_first_of(" \t\r\n=", at), text.size());
    token.key = text.substr(at, end - at);
    if (end < text.size() && text[end] == '=') {
      const std::size_t begin = end + 1;
      if (begin < text.size() && text[begin] == '"') {
        const std::size_t close = text.find('"', begin + 1);
        if (close == std::string_view::npos) fail_at(token, "a quote is not closed");
        token.value = text.substr(begin + 1, close - begin - 1);
        end = close + 1;
      } else {
        end = std::min(text.find_first_of(blanks, begin), text.size());
        token.value = text.substr(begin, end - begin);
      }
      if (token.value.empty()) fail_at(token, "has no value");
    }
    tokens.push_back(token);
    at = end;
  }
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class Number>
Number number(const Token& token, std::string_view text, const char* expected = "a number") {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) fail_at(token, "'", text, "' is out of range; expected ", expected);
  if (error != std::errc{} || end != text.data() + text.size()) fail_at(token, "'", text, "'; expected ", expected);
  return value;
}

template <class Number>
Number number(const Token& token) {
  return number<Number>(token, token.value);
}

using Pair = std::pair<std::int64_t, std::int64_t>;

/// `12:4`, or `12` for 12:12.
Pair pair_of(const Token& token, std::string_view text) {
  const auto parts = split(text, ':');
  if (parts.size() > 2) fail_at(token, "'", text, "'; expected N or N:M");
  const auto first = number<std::int64_t>(token, parts[0], "N or N:M");
  return {first, parts.size() == 2 ? number<std::int64_t>(token, parts[1], "N or N:M") : first};
}

template <class Value>
Value one_of(const Token& token, std::initializer_list<Value> values) {
  std::string names;
  for (const Value value : values) {
    if (token.value == to_string(value)) return value;
    names += (names.empty() ? "" : ", ") + std::string(to_string(value));
  }
  fail_at(token, "'", token.value, "'; expected one of ", names);
}

/// A row of `fill_rows` named in a parameter's text, with its numbers.
ParamFill parse_fill(const Token& token, std::string_view text) {
  ParamFill fill;
  const std::size_t open = text.find('(');
  fill.name = std::string(text.substr(0, open));
  if (open != std::string_view::npos) {
    if (text.back() != ')') fail_at(token, "'", text, "'; expected name(numbers)");
    const std::string_view inside = trimmed(text.substr(open + 1, text.size() - open - 2));
    if (!inside.empty())
      for (const std::string_view part : split(inside, ',')) fill.args.push_back(number<double>(token, trimmed(part)));
  }
  if (is_known(fill)) return fill;
  fail_at(token, "'", text, "'; expected a dtype, grad, grad=dtype or one of (name/numbers) ", known_fills());
}

/// `rel: real[12, 33] bf16 normal(0.5) grad=f64`
ParamLine parse_param_line(const Token& token, DType problem) {
  const std::size_t close = token.value.find(']');
  if (close == std::string_view::npos) fail_at(token, "'", token.value, "'; expected name: type[sizes]");
  ParamLine line;
  line.param = parse_param(token.value.substr(0, close + 1));
  line.dtype = default_dtype(line.param.type(), problem);
  line.grad_dtype = default_dtype(Type::real, problem);
  bool has_dtype = false;
  const auto once = [&](std::string_view word, bool before) {
    if (before) fail_at(token, "'", word, "' in '", token.value, "'; expected one dtype, one fill, one grad");
  };
  std::string_view rest = token.value.substr(close + 1);
  while (!(rest = trimmed(rest)).empty()) {
    std::size_t end = 0;  // a word ends at a space outside parentheses
    for (int depth = 0; end < rest.size() && (depth > 0 || rest[end] != ' '); ++end)
      depth += rest[end] == '(' ? 1 : rest[end] == ')' ? -1 : 0;
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end);
    const auto grad_dtype = word.starts_with("grad=") ? base::parse_dtype(word.substr(5)) : std::nullopt;
    if (const auto dtype = base::parse_dtype(word)) {
      once(word, has_dtype);
      line.dtype = *dtype, has_dtype = true;
    } else if (word == "grad" || grad_dtype) {
      once(word, line.grad);
      line.grad = true, line.grad_dtype = grad_dtype.value_or(line.grad_dtype);
    } else {
      once(word, !line.fill.name.empty());
      line.fill = parse_fill(token, word);
    }
  }
  if (const std::string why = misfit(line); !why.empty()) fail_at(token, why);
  return line;
}

/// `q:8,4,2,1;k:0,4,2,1`
void parse_strides(const Token& token, Line& line) {
  for (const std::string_view part : split(token.value, ';')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) fail_at(token, "'", part, "'; expected name:stride,stride,...");
    const std::string_view name = part.substr(0, colon);
    std::string names;
    for (const RoleRow& role : role_table::tensors) names += base::join(names.empty() ? "" : ", ", role.name);
    if (std::ranges::none_of(role_table::tensors, [&](const RoleRow& role) { return role.name == name; }))
      fail_at(token, "'", name, "' is not a tensor; expected one of ", names);
    if (std::ranges::any_of(line.strides, [&](const auto& given) { return given.first == name; }))
      fail_at(token, "'", name, "' given twice");
    std::vector<std::int64_t> strides;
    for (const std::string_view stride : split(part.substr(colon + 1), ',')) strides.push_back(number<std::int64_t>(token, stride));
    line.strides.emplace_back(name, std::move(strides));
  }
}

void parse_grads(const Token& token, Line& line) {
  line.dq = line.dk = line.dv = false;
  if (token.value == "none") return;
  for (const std::string_view name : split(token.value, ',')) {
    bool Line::*which = name == "dq" ? &Line::dq : name == "dk" ? &Line::dk : name == "dv" ? &Line::dv : nullptr;
    if (which == nullptr) fail_at(token, "'", name, "'; expected dq, dk, dv or none");
    if (line.*which) fail_at(token, "'", name, "' given twice");
    line.*which = true;
  }
}

void parse_dropout(const Token& token, Line& line) {
  const auto parts = split(token.value, ':');
  if (parts.size() > 4 || (parts.size() == 4 && parts[3] != "memory"))
    fail_at(token, "expected p, p:seed, p:seed:offset or p:seed:offset:memory");
  line.attention.dropout_p = number<double>(token, parts[0]);
  if (parts.size() > 1) line.rng.seed = number<std::uint64_t>(token, parts[1]);
  if (parts.size() > 2) line.rng.offset = number<std::uint64_t>(token, parts[2]);
  line.rng_in_memory = parts.size() > 3;
}

/// The name of a backend or target.
std::string plain_name(const Token& token) {
  for (const char c : token.value)
    if (!base::is_name_part(c)) fail_at(token, "a name has letters, digits and _");
  return std::string(token.value);
}

Device parse_device(const Token& token) {
  const auto parts = split(token.value, ':');
  if (parts.size() > 2 || (parts[0] != "cpu" && parts[0] != "cuda")) fail_at(token, "expected cpu, cuda or cuda:N");
  Device device{.kind = parts[0] == "cpu" ? DeviceKind::cpu : DeviceKind::cuda};
  if (parts.size() == 2) device.index = number<int>(token, parts[1]);
  if (device.index < 0 || (device.kind == DeviceKind::cpu && parts.size() == 2)) fail_at(token, "expected cpu, cuda or cuda:N");
  return device;
}

void parse_layout(const Token& token, Line& line) {
  line.varlen = line.varlen || token.value == "thd";
  if (token.value == "thd") return;
  for (const Layout layout : layouts)
    if (token.value == to_string(layout)) {
      line.layout = layout;
      return;
    }
  fail_at(token, "'", token.value, "'; expected bshd, bhsd, sbhd, thd, packed_qkv, padded or dim_first");
}

void parse_total(const Token& token, Line& line) {
  line.varlen = true;
  std::tie(line.total_q, line.total_kv) = pair_of(token, token.value);
  if (line.total_q < 0 || line.total_kv < 0) fail_at(token, "a length is negative");
}

void parse_lengths(const Token& token, Line& line) {
  line.varlen = true;
  for (const std::string_view part : split(token.value, ',')) line.lengths.push_back(pair_of(token, part));
  for (const auto& [q, kv] : line.lengths)
    if (q < 0 || kv < 0) fail_at(token, "a length is negative");
}

/// `pages=64` or `pages=64:20`: the page size, and the number of pages.
void parse_pages(const Token& token, Line& line) {
  const auto parts = split(token.value, ':');
  if (parts.size() > 2) fail_at(token, "'", token.value, "'; expected PAGE_SIZE or PAGE_SIZE:PAGES");
  line.page_size = number<std::int64_t>(token, parts[0]);
  if (parts.size() > 1) line.pages = number<std::int64_t>(token, parts[1]);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (line.page_size < 1 || line.page_size > most || line.pages < 0 || line.pages > most || (parts.size() > 1 && line.pages == 0))
    fail_at(token, "'", token.value, "'; expected positive numbers of at most 2^31");
}

/// What is being parsed, with tokens that only take effect at the end.
struct Draft {
  Line line;
  std::vector<std::int64_t> seqlens_kv;
  std::set<std::string_view> given;  ///< subjects of the tokens

  std::vector<Param> params() const {
    std::vector<Param> params;
    for (const ParamLine& param : line.params) params.push_back(param.param);
    return params;
  }
};

void parse_seqlens_kv(const Token& token, Draft& d) {
  for (const std::string_view part : split(token.value, ',')) d.seqlens_kv.push_back(number<std::int64_t>(token, part));
  for (const std::int64_t length : d.seqlens_kv)
    if (length < 0) fail_at(token, "a length is negative");
}

void parse_sink(const Token& token, Draft& d) {
  const std::vector<Param> params = d.params();
  const auto named = std::find_if(params.begin(), params.end(), [&](const Param& param) { return param.name() == token.value; });
  if (named == params.end()) fail_at(token, "'", token.value, "' is no param of this line");
  d.line.attention.sink = *named;
}

/// Passes over the tokens: `early` values are needed by others, and expressions need all parameters.
enum class When : std::uint8_t { early, middle, late };

struct Keyword {
  std::string_view shown;  ///< with '=' if it takes a value
  void (*parse)(const Token& token, Draft& draft);
  When when = When::middle;
  std::optional<Pass> only{};  ///< the pass that it is about; both, if none
  bool is_of(Pass pass) const { return !only || *only == pass; }
  std::string_view key() const { return shown.substr(0, shown.find('=')); }
};
using T = const Token&;
using D = Draft&;
constexpr Keyword keywords[] = {
    {"layout=", [](T t, D d) { parse_layout(t, d.line); }},
    {"strides=", [](T t, D d) { parse_strides(t, d.line); }},
    {"total=", [](T t, D d) { parse_total(t, d.line); }},
    {"lengths=", [](T t, D d) { parse_lengths(t, d.line); }},
    {"pages=", [](T t, D d) { parse_pages(t, d.line); }},
    {"seqlens_kv=", parse_seqlens_kv},
    {"cu=",
     [](T t, D d) {
       d.line.cu_seqlens_dtype = one_of(t, {DType::i32, DType::i64});
     }},
    {"mask=", [](T t, D d) { d.line.attention.mask = scoring::parse(t.value, d.params(), "mask"); }, When::late},
    {"score=", [](T t, D d) { d.line.attention.score_mod = scoring::parse(t.value, d.params(), "score"); }, When::late},
    {"param=", [](T t, D d) { d.line.params.push_back(parse_param_line(t, d.line.dtype)); }},
    {"sink=", parse_sink, When::late},
    {"scale=", [](T t, D d) { d.line.attention.scale = number<double>(t); }},
    {"dropout=", [](T t, D d) { parse_dropout(t, d.line); }},
    {"determinism=",
     [](T t, D d) {
       d.line.attention.determinism = one_of(t, {Determinism::fast, Determinism::reproducible});
     }},
    {"strategy=",
     [](T t, D d) {
       using enum BackwardStrategy;
       d.line.attention.backward = one_of(t, {automatic, fused, split, two_scan});
     }},
    {"checked", [](T, D d) { d.line.attention.checked = true; }},
    {"q_offset=", [](T t, D d) { d.line.attention.q_offset = number<std::int64_t>(t); }},
    {"kv_offset=", [](T t, D d) { d.line.attention.kv_offset = number<std::int64_t>(t); }},
    {"no_lse", [](T, D d) { d.line.lse = false; }, When::middle, Pass::forward},
    {"dlse", [](T, D d) { d.line.dlse = true; }, When::middle, Pass::backward},
    {"grads=", [](T t, D d) { parse_grads(t, d.line); }, When::middle, Pass::backward},
    {"seed=", [](T t, D d) { d.line.seed = number<std::uint64_t>(t); }, When::early},
    {"inputs=",
     [](T t, D d) {
       d.line.fill = one_of(t, {Fill::normal, Fill::adversarial});
     }},
    {"sample=",
     [](T t, D d) {
       d.line.sample = number<std::int64_t>(t);
       if (d.line.sample < 0) fail_at(t, "'", t.value, "'; expected 0 or more");
     }},
    {"device=", [](T t, D d) { d.line.device = parse_device(t); }},
    {"backend=", [](T t, D d) { d.line.options.backend = plain_name(t); }},
    {"target=", [](T t, D d) { d.line.options.target = plain_name(t); }},
    {"threads=", [](T t, D d) { d.line.options.threads = number<int>(t); }},
};

/// What a token says: the pass, the dtype, a size by its letter, or its key.
std::string_view subject_of(const Token& token) {
  const std::string_view key = token.key;
  if (key == "forward" || key == "backward") return "pass";
  if (const auto dtype = base::parse_dtype(key); dtype && is_floating(*dtype)) return "dtype";
  const bool is_size = token.value.empty() && key.size() >= 2 && std::string_view("bhqd").find(key[0]) != std::string_view::npos &&
                       key[1] >= '0' && key[1] <= '9';
  return is_size ? key.substr(0, 1) : key;
}

/// Its row; the end of `keywords` for the other tokens.
const Keyword* keyword_of(const Token& token) { return std::ranges::find(keywords, token.key, &Keyword::key); }

/// Whether `key=value` says more than `key` does.
bool takes_value(const Token& token) {
  const std::string_view subject = subject_of(token);
  const Keyword* row = keyword_of(token);
  return subject != "pass" && subject != "dtype" && (row == std::end(keywords) || row->shown.ends_with('='));
}

/// A second token would silently take the place of the first, and `checked=0` would be `checked`.
std::set<std::string_view> subjects_of(const std::vector<Token>& tokens) {
  std::set<std::string_view> found;
  for (const Token& token : tokens)
    if (!token.value.empty() && !takes_value(token)) fail_at(token, "'", token.value, "'; expected no value");
  for (const Token& token : tokens)
    if (const std::string_view subject = subject_of(token); !found.insert(subject).second && subject != "param")
      fail_at(token, "the line has given ", subject, " before; expected it once");
  return found;
}

/// A pass, a floating dtype, or a size: `b2`, `h12:4`, `q1024`, `d64`. False for other tokens.
bool parse_word(const Token& token, Draft& d) {
  Line& l = d.line;
  const std::string_view subject = subject_of(token);
  if (subject == "pass") l.pass = token.key == "forward" ? Pass::forward : Pass::backward;
  if (subject == "dtype") l.dtype = *base::parse_dtype(token.key);
  if (subject == "pass" || subject == "dtype") return true;
  if (subject.size() == token.key.size()) return false;
  const std::string_view digits = token.key.substr(1);
  switch (token.key[0]) {
    case 'b':
      l.batch = number<std::int64_t>(token, digits);
      return true;
    case 'h':
      std::tie(l.heads_q, l.heads_kv) = pair_of(token, digits);
      return true;
    case 'q':
      std::tie(l.seqlen_q, l.seqlen_kv) = pair_of(token, digits);
      return true;
    case 'd':
      std::tie(l.head_dim, l.head_dim_v) = pair_of(token, digits);
      return true;
    default:
      return false;
  }
}

void parse_keyword(const Token& token, When when, Draft& d) {
  const Keyword* row = keyword_of(token);
  if (row != std::end(keywords)) {
    if (!row->is_of(d.line.pass)) fail_at(token, "given for a ", to_string(d.line.pass), " pass; expected ", to_string(*row->only));
    if (row->when == when) row->parse(token, d);
  } else if (when == When::middle) {
    std::string names;
    for (const Keyword& keyword : keywords) names += base::join(names.empty() ? "" : ", ", keyword.shown);
    fail_at(token, "unknown; expected forward, backward, f64, f32, bf16, f16, bN, hN[:M], qN[:M], dN[:M], or one of ", names);
  }
}

constexpr std::int64_t most_sequences = 1 << 20, most_tokens = std::int64_t{1} << 48;

/// Key counts of batched queries over pages: given, or drawn from [1, seqlen_kv] with the longest first.
void settle_seqlens_kv(Draft& d) {
  Line& l = d.line;
  FOVEAL_CHECK(l.paged(), "problem line: seqlens_kv without pages=; expected both");
  FOVEAL_CHECK(!l.varlen || d.seqlens_kv.empty(), "problem line: seqlens_kv of packed queries; expected lengths=q:kv,...");
  if (l.varlen) return;
  FOVEAL_CHECK(d.seqlens_kv.empty() || static_cast<std::int64_t>(d.seqlens_kv.size()) == l.batch,
               "problem line: seqlens_kv: ", d.seqlens_kv.size(), " lengths; expected ", l.batch, ", one for each sequence");
  FOVEAL_CHECK(l.batch >= 1 && l.batch <= most_sequences, "problem line: b", l.batch, "; expected 1 to ", most_sequences, " with pages");
  base::Random random(l.seed + 1);
  for (std::int64_t i = 0; i < l.batch; ++i) {
    const std::int64_t drawn = i == 0 ? l.seqlen_kv : random.integer(1, std::max<std::int64_t>(1, l.seqlen_kv));
    l.lengths.emplace_back(l.seqlen_q, d.seqlens_kv.empty() ? drawn : d.seqlens_kv[static_cast<std::size_t>(i)]);
  }
}

/// Lengths of packed sequences: given, or even shares of the totals, or drawn from [1, seqlen] with the longest first.
void settle_lengths(Draft& d) {
  Line& l = d.line;
  if (!l.lengths.empty()) {
    FOVEAL_CHECK(!d.given.contains("total"), "problem line: lengths= and total=; expected one of them");
    FOVEAL_CHECK(!d.given.contains("b") || l.batch == static_cast<std::int64_t>(l.lengths.size()), "problem line: b", l.batch, " and ",
                 l.lengths.size(), " lengths; expected as many");
  } else {
    FOVEAL_CHECK(l.batch >= 1 && l.batch <= most_sequences, "problem line: b", l.batch, "; expected 1 to ", most_sequences,
                 " of packed sequences");
    const auto even = [&](std::int64_t total, std::int64_t i) { return total / l.batch + (i < total % l.batch); };
    base::Random random(l.seed + 1);
    for (std::int64_t i = 0; i < l.batch; ++i) {
      if (d.given.contains("total")) {
        l.lengths.emplace_back(even(l.total_q, i), even(l.total_kv, i));
      } else {
        const bool first = i == 0, same = l.seqlen_q == l.seqlen_kv;
        const std::int64_t q = first ? l.seqlen_q : random.integer(1, std::max<std::int64_t>(1, l.seqlen_q));
        const std::int64_t kv = first ? l.seqlen_kv : same ? q : random.integer(1, std::max<std::int64_t>(1, l.seqlen_kv));
        l.lengths.emplace_back(q, kv);
      }
    }
  }
  l.batch = static_cast<std::int64_t>(l.lengths.size());
  l.total_q = l.total_kv = 0;
  Pair longest{0, 0};
  for (const auto& [q, kv] : l.lengths) {
    FOVEAL_CHECK(q <= most_tokens - l.total_q && kv <= most_tokens - l.total_kv, "problem line: packed sequences of more than 2^48 tokens");
    l.total_q += q, l.total_kv += kv;
    longest = {std::max(longest.first, q), std::max(longest.second, kv)};
  }
  if (!d.given.contains("q")) std::tie(l.seqlen_q, l.seqlen_kv) = longest;
}

/// A table row holds the longest sequence. Unless given, there are enough pages that none is shared, and one that no sequence uses.
void settle_pages(Line& l) {
  for (const auto& [q, kv] : l.lengths) l.seqlen_kv = std::max(l.seqlen_kv, kv);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  FOVEAL_CHECK(l.seqlen_kv <= most, "problem line: ", l.seqlen_kv, " keys in pages; expected at most ", most);
  l.seqlen_kv = base::round_up(std::max<std::int64_t>(1, l.seqlen_kv), l.page_size);
  if (l.pages == 0) l.pages = static_cast<std::int64_t>(l.lengths.size()) * l.table_pages() + 1;
  l.total_kv = 0;
}

}  // namespace

DType default_dtype(Type type, DType problem) {
  if (type == Type::real) return base::wide_type(problem);
  return type == Type::integer ? DType::i32 : DType::boolean;
}

namespace {

Line parsed(std::vector<Token> tokens) {
  Draft draft;
  draft.given = subjects_of(tokens);
  std::erase_if(tokens, [&](const Token& token) { return parse_word(token, draft); });
  for (const When when : {When::early, When::middle, When::late})
    for (const Token& token : tokens) parse_keyword(token, when, draft);
  FOVEAL_CHECK(draft.line.varlen || draft.line.paged() || !draft.given.contains("cu"),
               "problem line: cu= without lengths that it is the type of; expected layout=thd, total=, lengths= or pages= too");
  if (draft.line.paged() || !draft.seqlens_kv.empty()) settle_seqlens_kv(draft);
  if (draft.line.varlen) settle_lengths(draft);
  if (draft.line.paged()) settle_pages(draft.line);
  return std::move(draft.line);
}

}  // namespace

Line parse_line(std::string_view text) { return parsed(tokens_of(text)); }

std::vector<Line> parse_lines(std::string_view text) {
  std::vector<Token> tokens = tokens_of(text);
  if (tokens.empty() || tokens.front().key != "both") return {parse_line(text)};
  std::vector<Line> lines;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    tokens.front().key = to_string(pass);
    std::vector<Token> own;
    std::ranges::copy_if(tokens, std::back_inserter(own), [&](const Token& token) {
      const Keyword* row = keyword_of(token);
      return row == std::end(keywords) || row->is_of(pass);
    });
    lines.push_back(parsed(std::move(own)));
  }
  return lines;
}

}  // namespace foveal::problem
