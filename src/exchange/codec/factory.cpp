// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "core/require.h"
#include "exchange/codec/codec.h"

namespace thinwire::exchange {

namespace {

using KnownCodecs = std::map<int, std::unique_ptr<const ValueCodec>>;

KnownCodecs& codecs() {
  static KnownCodecs all = [] {
    KnownCodecs known;
    for (const int bits : {4, 8}) known.emplace(bits, make_bits_codec(bits));
    return known;
  }();
  return all;
}

}  // namespace

std::string known_bits(bool or_exact) {
  std::string text = or_exact ? "0, " : "";
  std::size_t left = codecs().size();
  for (const auto& [bits, codec] : codecs()) {
    --left;
    text += fmt::format("{}{}", bits,
                        left == 0   ? ""
                        : left == 1 ? " or "
                                    : ", ");
  }
  return text;
}

bool has_codec(int bits) noexcept { return codecs().contains(bits); }

const ValueCodec& codec_of(int bits) {
  const auto found = codecs().find(bits);
  if (found == codecs().end()) require_bits("bits", bits);
  return *found->second;
}

void require_bits(std::string_view name, int bits) {
  require(has_codec(bits), name, known_bits(/*or_exact=*/false), bits);
}

void require_bits_or_exact(std::string_view name, int bits,
                           std::string_view advice) {
  require(bits == 0 || has_codec(bits), name,
          fmt::format("{}{}", known_bits(/*or_exact=*/true), advice), bits);
}

void add_codec(int bits, std::unique_ptr<const ValueCodec> codec) {
  const bool is_new = codecs().emplace(bits, std::move(codec)).second;
  require(is_new, "bits", "without a codec", bits);
}

}  // namespace thinwire::exchange
