#include "dist/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

namespace foveal::dist {
namespace {

/// The numbers of one rank: the code of its refusal, or 0, and its fields.
using Numbers = std::array<std::uint64_t, 1 + Agreement::most_fields>;

/// Of all ranks, cut where it is long.
std::vector<std::string> gather_texts(Transport& transport, const std::string& mine) {
  constexpr std::size_t most = 512;
  std::array<char, most> text{};
  std::memcpy(text.data(), mine.data(), std::min(mine.size(), most - 1));
  std::vector<std::array<char, most>> all(static_cast<std::size_t>(transport.size()));
  transport.all_gather(text.data(), most, all.data());
  std::vector<std::string> texts;
  texts.reserve(all.size());
  for (const std::array<char, most>& one : all) texts.emplace_back(one.data());
  return texts;
}

ErrorCode code_of(const std::exception_ptr& error, std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    text = known.what();
    return known.code();
  } catch (const std::exception& other) {
    text = other.what();
    return ErrorCode::unsupported;
  } catch (...) {
    text = "an exception of another language or library";
    return ErrorCode::unsupported;
  }
}

}  // namespace

void Agreement::add(const char* name, const std::string& text) { add(name, base::hash64(text), text); }

void Agreement::add(const char* name, std::uint64_t value, const std::string& text) { fields_.push_back({name, value, text}); }

void Agreement::exchange(Transport& transport) {
  Numbers mine{};
  std::string why;
  if (refusal_) mine[0] = static_cast<std::uint64_t>(code_of(refusal_, why));
  for (std::size_t f = 0; f < fields_.size(); ++f) mine[1 + f] = fields_[f].value;
  std::vector<Numbers> all(static_cast<std::size_t>(transport.size()));
  transport.all_gather(mine.data(), sizeof mine, all.data());
  // All ranks see the same numbers, so all of them go on to texts, or none.
  const auto refuses = std::find_if(all.begin(), all.end(), [](const Numbers& numbers) { return numbers[0] != 0; });
  if (refuses != all.end()) {
    const std::vector<std::string> texts = gather_texts(transport, why);
    known_to_all_ = true;
    if (refusal_) std::rethrow_exception(refusal_);
    const auto rank = static_cast<std::size_t>(refuses - all.begin());
    base::fail(static_cast<ErrorCode>((*refuses)[0]), "context parallelism: rank ", rank, ": ", texts[rank]);
  }
  for (std::size_t f = 0; f < fields_.size(); ++f)
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank][1 + f] == all[0][1 + f]) continue;
      const std::vector<std::string> texts = gather_texts(transport, fields_[f].text);
      known_to_all_ = true;
      base::fail(ErrorCode::invalid_argument, "context parallelism: ranks 0 and ", rank, " differ in ", fields_[f].name, ": rank 0 has ",
                 texts[0], "; rank ", rank, " has ", texts[rank]);
    }
}

}  // namespace foveal::dist
