// SPDX-License-Identifier: Apache-2.0
#include "config/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/duration.h"
#include "core/require.h"

namespace thinwire::config {

bool Limits::allow(double value) const {
  return std::isfinite(value) &&
         (above_least ? value > least : value >= least) &&
         (below_most ? value < most : value <= most);
}

std::string Limits::text(bool several) const {
  const std::string_view noun = several ? "numbers" : "number";
  if (std::isfinite(least) && std::isfinite(most))
    return fmt::format("{} in {}{}, {}{}", noun, above_least ? '(' : '[', least,
                       most, below_most ? ')' : ']');
  if (std::isfinite(least))
    return fmt::format("finite {} {} {}", noun,
                       above_least ? ">" : ">=", least);
  return fmt::format("finite {}", noun);
}

std::string Limits::integer_text(double given) const {
  if (std::isfinite(most))
    return fmt::format("integer in [{}, {}]", least, most);
  return fmt::format(
      "integer >= {}{}{}", least,
      given > 0x1p53 ? " and < 2^63, written in digits if above 2^53" : "",
      word.empty() ? "" : fmt::format(" or \"{}\"", word));
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

Reader::Reader(const Json* object, std::string path, Paths paths)
    : object_(object), path_(std::move(path)), paths_(paths) {}

std::string Reader::path_of(std::string_view name) const {
  if (path_.empty()) return std::string(name);
  return paths_ == Paths::kFile ? fmt::format("{}.{}", path_, name)
                                : fmt::format("{}['{}']", path_, name);
}

Reader Reader::section(std::string_view name) const {
  Reader found(object_ == nullptr ? nullptr : object_->find(name),
               path_of(name), paths_);
  found.lenient_ = lenient_;
  return found;
}

bool Reader::has(std::string_view name) const {
  return object_ != nullptr && object_->find(name) != nullptr;
}

bool Reader::is_text(std::string_view name, std::string_view text) const {
  return has(name) && text_of(name) == text;
}

std::string Reader::refusal(std::string_view name,
                            std::string_view range) const {
  const Json* value = object_ == nullptr ? nullptr : object_->find(name);
  return fmt::format("{} must be {}, got {}", path_of(name), range,
                     value == nullptr ? "nothing" : brief_json(*value));
}

void Reader::reject(std::string_view name, std::string_view range) const {
  thinwire::reject(refusal(name, range));
}

void Reader::reject_type(std::string_view name, std::string_view range) const {
  throw WrongType(ErrorCode::kInvalidArgument, refusal(name, range));
}

void Reader::exclude(std::string_view name, std::string_view range) const {
  throw Conflict(ErrorCode::kInvalidArgument, refusal(name, range));
}

void Reader::field(std::string_view name, bool& value) const {
  if (!has(name)) return;
  const Json& json = *object_->find(name);
  if (json.is(Json::Kind::kBoolean))
    value = json.boolean;
  else if (!lenient_)
    reject_type(name, "true or false");
}

std::optional<double> Reader::number(std::string_view name, const Json& value,
                                     const Limits& limits, bool of_pair) const {
  if (value.is(Json::Kind::kNumber) && limits.allow(value.number))
    return value.number;
  if (lenient_) return std::nullopt;
  const std::string range =
      (of_pair ? "an array of two " : "a ") + limits.text(of_pair);
  if (!value.is(Json::Kind::kNumber)) reject_type(name, range);
  reject(name, range);
}

void Reader::field(std::string_view name, double& value,
                   const Limits& limits) const {
  if (!has(name)) return;
  value = number(name, *object_->find(name), limits).value_or(value);
}

void Reader::field(std::string_view name, std::int64_t& value,
                   const Limits& limits) const {
  if (!has(name)) return;
  const Json& json = *object_->find(name);
  if (!limits.word.empty() && is_text(name, limits.word)) {
    value = -1;
    return;
  }
  // 5e8 is an integer too. Beyond 2^53 a double may be another number.
  std::int64_t whole = 0;
  const char* end = json.text.data() + json.text.size();
  const auto [last, error] = std::from_chars(json.text.data(), end, whole);
  bool exact = error == std::errc{} && last == end;
  if (!exact && std::abs(json.number) <= 0x1p53 &&
      json.number == std::floor(json.number)) {
    whole = static_cast<std::int64_t>(json.number);
    exact = true;
  }
  const bool is_whole =
      json.is(Json::Kind::kNumber) && json.number == std::floor(json.number);
  if (is_whole && exact && limits.allow(json.number))
    value = whole;
  else if (!lenient_ && !is_whole)
    reject_type(name, "an " + limits.integer_text(json.number));
  else if (!lenient_)
    reject(name, "an " + limits.integer_text(json.number));
}

void Reader::field(std::string_view name, std::size_t& value,
                   const Limits& limits) const {
  auto read = static_cast<std::int64_t>(value);
  field(name, read, limits);
  if (read >= 0) value = static_cast<std::size_t>(read);
}

void Reader::field(std::string_view name, int& value,
                   const Limits& limits) const {
  std::int64_t read = value;
  Limits narrow = limits;
  narrow.most = std::min(narrow.most, double{std::numeric_limits<int>::max()});
  narrow.least =
      std::max(narrow.least, double{std::numeric_limits<int>::min()});
  field(name, read, narrow);
  value = static_cast<int>(read);
}

void Reader::text(std::string_view name, std::string& value) const {
  if (!has(name)) return;
  const Json& json = *object_->find(name);
  if (!json.is(Json::Kind::kText) || json.text.empty())
    reject(name, "a text that is not empty");
  value = json.text;
}

void Reader::duration(std::string_view name,
                      std::chrono::milliseconds& value) const {
  if (!has(name)) return;
  const Json& json = *object_->find(name);
  const auto read =
      json.is(Json::Kind::kText) ? duration_from(json.text) : std::nullopt;
  if (!read) reject(name, kDurations);
  value = *read;
}

void Reader::pair(std::string_view name, double& first, double& second,
                  const Limits& limits) const {
  if (!has(name)) return;
  const Json& json = *object_->find(name);
  if (!json.is(Json::Kind::kArray) || json.elements.size() != 2)
    reject(name, "an array of two " + limits.text(true));
  first = number(name, json.elements[0], limits, true).value_or(first);
  second = number(name, json.elements[1], limits, true).value_or(second);
}

std::string Reader::text_of(std::string_view name) const {
  const Json& json = *object_->find(name);
  return json.is(Json::Kind::kText) ? lower(json.text) : "";
}

Writer Writer::section(std::string_view name) const {
  return Writer(object_->add(std::string(name), Json::object()));
}

void Writer::text(std::string_view name, std::string_view value) const {
  if (!value.empty()) field(name, value);
}

void Writer::duration(std::string_view name,
                      std::chrono::milliseconds value) const {
  if (value.count() != 0) field(name, to_text(value));
}

void Writer::pair(std::string_view name, double first, double second,
                  const Limits&) const {
  object_->add(std::string(name),
               {.kind = Json::Kind::kArray,
                .elements = {Json::of(first), Json::of(second)}});
}

}  // namespace thinwire::config
