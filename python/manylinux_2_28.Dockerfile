# SPDX-License-Identifier: Apache-2.0
# UNTRIED: this has never been run. Wheels for distributions older than Debian 12:
#   docker build -f python/manylinux_2_28.Dockerfile -o dist .
# Highway is linked statically here, so auditwheel has nothing to put in.
FROM quay.io/pypa/manylinux_2_28_x86_64 AS build
RUN dnf install -y gcc-toolset-12-gcc-c++ ninja-build xxhash-devel pkgconf
ENV PATH=/opt/rh/gcc-toolset-12/root/usr/bin:/opt/python/cp312-cp312/bin:$PATH CXX=g++
RUN pip install "cmake>=3.25" "scikit-build-core==1.1.2" "nanobind==3.1.0" build
RUN git clone --depth 1 --branch 1.0.3 https://github.com/google/highway /highway && \
    cmake -S /highway -B /highway/build -D BUILD_SHARED_LIBS=OFF -D BUILD_TESTING=OFF \
      -D HWY_ENABLE_EXAMPLES=OFF -D HWY_ENABLE_CONTRIB=OFF -D CMAKE_BUILD_TYPE=Release \
      -D CMAKE_POSITION_INDEPENDENT_CODE=ON && \
    cmake --build /highway/build --target install --parallel
RUN git clone --depth 1 --branch 9.1.0 https://github.com/fmtlib/fmt /fmt && \
    cp -r /fmt/include/fmt /usr/local/include/
RUN git clone --depth 1 --branch v3.11.2 https://github.com/nlohmann/json /json && \
    cmake -S /json -B /json/build -D JSON_BuildTests=OFF && \
    cmake --build /json/build --target install
RUN git clone --depth 1 --branch v2.1.2 https://github.com/CLIUtils/CLI11 /cli11 && \
    cmake -S /cli11 -B /cli11/build -D CLI11_BUILD_TESTS=OFF -D CLI11_BUILD_EXAMPLES=OFF && \
    cmake --build /cli11/build --target install
COPY . /thinwire
WORKDIR /thinwire
# What was built above has left no licence where cmake/notices.cmake looks.
ENV CMAKE_ARGS="-DTHINWIRE_NOTICE_HIGHWAY=/highway/LICENSE -DTHINWIRE_NOTICE_FMT=/fmt/LICENSE.rst \
  -DTHINWIRE_NOTICE_NLOHMANN_JSON=/json/LICENSE.MIT -DTHINWIRE_NOTICE_CLI11=/cli11/LICENSE \
  -DTHINWIRE_NOTICE_XXHASH=/usr/share/licenses/xxhash-libs/LICENSE"
RUN python -m build --no-isolation && auditwheel repair --wheel-dir wheels dist/*.whl && \
    /opt/python/cp311-cp311/bin/pip wheel --no-deps --wheel-dir wheels-311 . && \
    auditwheel repair --wheel-dir wheels wheels-311/thinwire-*.whl

FROM scratch
COPY --from=build /thinwire/wheels/ /thinwire/dist/*.tar.gz /
