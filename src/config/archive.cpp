// SPDX-License-Identifier: Apache-2.0
#include "config/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
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

Reader::Reader(const JsonValue* object, std::string path, Paths paths)
    : object_(object), path_(std::move(path)), paths_(paths) {}

std::string Reader::path_of(std::string_view name) const {
  if (path_.empty()) return std::string(name);
  return paths_ == Paths::kFile ? fmt::format("{}.{}", path_, name)
                                : fmt::format("{}['{}']", path_, name);
}

Reader Reader::section(std::string_view name) const {
  Reader found(object_ == nullptr ? nullptr : find_member(*object_, name),
               path_of(name), paths_);
  found.lenient_ = lenient_;
  return found;
}

bool Reader::has(std::string_view name) const {
  if (names_ != nullptr) names_->emplace_back(name);
  return object_ != nullptr && find_member(*object_, name) != nullptr;
}

bool Reader::is_text(std::string_view name, std::string_view text) const {
  return has(name) && text_of(name) == text;
}

std::string Reader::refusal(std::string_view name,
                            std::string_view range) const {
  const JsonValue* value =
      object_ == nullptr ? nullptr : find_member(*object_, name);
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
  const JsonValue& json = *find_member(*object_, name);
  if (json.is_boolean())
    value = json.get<bool>();
  else if (!lenient_)
    reject_type(name, "true or false");
}

std::optional<double> Reader::number(std::string_view name,
                                     const JsonValue& value,
                                     const Limits& limits, bool of_pair) const {
  if (value.is_number() && limits.allow(value.get<double>()))
    return value.get<double>();
  if (lenient_) return std::nullopt;
  const std::string range =
      (of_pair ? "an array of two " : "a ") + limits.text(of_pair);
  if (!value.is_number()) reject_type(name, range);
  reject(name, range);
}

void Reader::field(std::string_view name, double& value,
                   const Limits& limits) const {
  if (!has(name)) return;
  value = number(name, *find_member(*object_, name), limits).value_or(value);
}

void Reader::field(std::string_view name, std::int64_t& value,
                   const Limits& limits) const {
  if (!has(name)) return;
  const JsonValue& json = *find_member(*object_, name);
  if (!limits.word.empty() && is_text(name, limits.word)) {
    value = -1;
    return;
  }
  const double number = json.is_number() ? json.get<double>() : 0;
  const bool is_whole = json.is_number() && number == std::floor(number);
  std::optional<std::int64_t> whole = integer_in(json);
  // Texts such as 5e8 are integers as well. Above 2^53 a double may differ from
  // the text.
  if (is_whole && json.is_number_float() && std::abs(number) <= 0x1p53)
    whole = static_cast<std::int64_t>(number);
  if (whole && limits.allow(number))
    value = *whole;
  else if (!lenient_ && !is_whole)
    reject_type(name, "an " + limits.integer_text(number));
  else if (!lenient_)
    reject(name, "an " + limits.integer_text(number));
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
  const JsonValue& json = *find_member(*object_, name);
  if (!json.is_string() || json.get_ref<const std::string&>().empty())
    reject(name, "a text that is not empty");
  value = json.get<std::string>();
}

void Reader::duration(std::string_view name,
                      std::chrono::milliseconds& value) const {
  if (!has(name)) return;
  const JsonValue& json = *find_member(*object_, name);
  const auto read = json.is_string()
                        ? duration_from(json.get_ref<const std::string&>())
                        : std::nullopt;
  if (!read) reject(name, kDurations);
  value = *read;
}

void Reader::pair(std::string_view name, double& first, double& second,
                  const Limits& limits) const {
  if (!has(name)) return;
  const JsonValue& json = *find_member(*object_, name);
  if (!json.is_array() || json.size() != 2)
    reject(name, "an array of two " + limits.text(true));
  first = number(name, json[0], limits, true).value_or(first);
  second = number(name, json[1], limits, true).value_or(second);
}

std::string Reader::text_of(std::string_view name) const {
  const JsonValue& json = *find_member(*object_, name);
  return json.is_string() ? lower(json.get_ref<const std::string&>()) : "";
}

Writer Writer::section(std::string_view name) const {
  return Writer((*object_)[std::string(name)] = JsonValue::object());
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
  (*object_)[std::string(name)] = {short_number(first), short_number(second)};
}

}  // namespace thinwire::config
