# The compiler warns only while Thinwire itself is developed, since a parent may turn
# warnings into errors. They are errors only for GCC, whose warnings the sources
# follow: clang has others. Flags that keep arithmetic exact are part of
# every target, because the same bits are promised everywhere.
add_library(thinwire_flags INTERFACE)
target_compile_options(
  thinwire_flags
  INTERFACE
    "$<$<BOOL:${PROJECT_IS_TOP_LEVEL}>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>"
    $<$<AND:$<BOOL:${PROJECT_IS_TOP_LEVEL}>,$<CXX_COMPILER_ID:GNU>>:-Werror>
    -ffp-contract=off -fno-math-errno -fno-trapping-math)

# thinwire_library(core a.cpp b.cpp): the module's static library thinwire_core,
# known inside the build and to users as thinwire::core.
function(thinwire_library module)
  add_library(thinwire_${module} STATIC ${ARGN})
  add_library(thinwire::${module} ALIAS thinwire_${module})
  target_include_directories(
    thinwire_${module}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(thinwire_${module} PUBLIC cxx_std_20)
  if(NOT THINWIRE_SANITIZE)  # -O1, see options.cmake
    # Without a build type, which a parent project may leave out, the compiler
    # would not optimize at all.
    target_compile_options(
      thinwire_${module}
      PRIVATE $<$<OR:$<CONFIG:RelWithDebInfo>,$<CONFIG:>>:-O3>)
  endif()
  target_link_libraries(thinwire_${module} PRIVATE $<BUILD_INTERFACE:thinwire_flags>)
  # A shared object that links the archive does not export its symbols.
  target_link_options(thinwire_${module} INTERFACE
                      LINKER:--exclude-libs,libthinwire_${module}.a)
  set_target_properties(thinwire_${module} PROPERTIES EXPORT_NAME ${module})
  set_property(GLOBAL APPEND PROPERTY THINWIRE_MODULES thinwire_${module})
endfunction()
