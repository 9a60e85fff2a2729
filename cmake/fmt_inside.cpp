// SPDX-License-Identifier: Apache-2.0
// What fmt's headers leave to its library: fmt_inside.cmake says why it is here.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float x) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double x) noexcept;
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl(locale_ref loc);
template char decimal_point_impl(locale_ref loc);

}  // namespace detail
FMT_END_NAMESPACE
