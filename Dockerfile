# The command in a small image; models lie in the volume /models.
#
#   docker build -t riffle .
#   docker run --rm -v models:/models riffle pull Qwen/Qwen2.5-1.5B-Instruct-GGUF
#   docker run --rm -v models:/models -v "$PWD:/work:ro" riffle ask --model Qwen/Qwen2.5-1.5B-Instruct-GGUF /work/book.epub "Who?"
#   docker run --rm -v models:/models -p 127.0.0.1:8080:8080 riffle serve --host 0.0.0.0 --model Qwen/Qwen2.5-1.5B-Instruct-GGUF --api-key-file /models/keys.txt

FROM rust:1.95-slim-bookworm AS build
WORKDIR /riffle
COPY . .
RUN cargo build --profile dist --locked --bin riffle
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && scripts/release/release-licences "$(rustc --print host-tuple)" >LICENSES-OF-OTHERS.txt

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home riffle \
 && mkdir /models \
 && chown riffle /models
COPY --from=build /riffle/target/dist/riffle /usr/local/bin/riffle
COPY --from=build /riffle/LICENSE-APACHE /riffle/LICENSE-MIT /riffle/LICENSES-OF-OTHERS.txt /usr/share/doc/riffle/
COPY --from=build /riffle/fixtures/model /home/riffle/fixtures/model
COPY --from=build /riffle/fixtures/text /home/riffle/fixtures/text
ENV HF_HOME=/models
VOLUME /models
USER riffle
WORKDIR /home/riffle
EXPOSE 8080
ENTRYPOINT ["riffle"]
