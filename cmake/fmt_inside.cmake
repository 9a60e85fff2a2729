# fmt::fmt as part of the Python module: torch has an fmt of its own, and a wheel
# may ask for no library that PyTorch's users lack.
add_library(thinwire_fmt STATIC cmake/fmt_inside.cpp)
add_library(fmt::fmt ALIAS thinwire_fmt)
target_include_directories(thinwire_fmt SYSTEM PUBLIC ${FMT_INCLUDE_DIR})
# As Debian's fmt::fmt has it: with the same flags ccache finds the objects of the
# preset release.
target_compile_definitions(thinwire_fmt PUBLIC FMT_SHARED)
